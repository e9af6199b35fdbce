"""The shop that the pages speak of: its tables, its tasks, and the names that their blocks take for granted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy import Column, Integer, MetaData, Table, Text, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import akadze
import akadze.sync
from akadze import current
from tests.docs.bench import Bench

orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("customer", Text))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(server_default="customer@example.org")
    state: Mapped[str] = mapped_column(default="placed", server_default="placed")


@dataclass
class NewOrder:
    customer: str


async def open_shop(bench: Bench) -> None:
    """Make the table and the tasks, and hand out the names."""
    app = bench.app
    async with app.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    @app.task("charge_order")
    async def charge_order(order_id: int) -> None:
        async with current().complete_tx() as connection:
            await connection.execute(update(Order).where(Order.id == order_id).values(state="paid"))

    @app.task("send_mail", queue="mail")
    async def send_mail(to: str, subject: str) -> None: ...

    @app.task("send_parcel")
    async def send_parcel(order_id: int) -> None: ...

    names: dict[str, Any] = {
        "NewOrder": NewOrder,
        "Order": Order,
        "charge_order": charge_order,
        "orders": orders,
        "send_mail": send_mail,
        "send_parcel": send_parcel,
        "database_url": bench.url,
    }
    for module in (asyncio, psycopg):
        names[module.__name__] = module
    for thing in (AsyncConnection, AsyncSession, Session, datetime, timedelta, insert, select, update):
        names[thing.__name__] = thing
    names |= {"UTC": UTC, "func": func}
    names |= {name: getattr(akadze, name) for name in akadze.__all__}
    bench.names |= names


async def place(bench: Bench, order_id: int) -> None:
    await bench.rows("insert into orders (id) values (:id)", id=order_id)


async def state_of(bench: Bench, order_id: int) -> str:
    ((state,),) = await bench.rows("select state from orders where id = :id", id=order_id)
    return str(state)
