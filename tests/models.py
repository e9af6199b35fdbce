"""A table of an application that has an ORM."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    __table_args__ = {"schema": "public"}  # noqa: RUF012 - as SQLAlchemy documents it

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
