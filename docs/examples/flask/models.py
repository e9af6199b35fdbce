"""The tables of the courses."""

from __future__ import annotations

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


class Course(Base):
    __tablename__ = "courses"

    name: Mapped[str] = mapped_column(primary_key=True)
    seats: Mapped[int]


class Booking(Base):
    __tablename__ = "bookings"

    id: Mapped[int] = mapped_column(primary_key=True)
    course: Mapped[str]
    email: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(default=False)
