"""The set-ups of docs/flask.md, and of the pytest plugin in docs/testing.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from akadze.pytest_plugin import Jobs
from akadze.sync import current
from tests.docs.bench import Bench
from tests.docs.setups import set_up
from tests.docs.shop import open_shop, place, state_of


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"

    id: Mapped[int] = mapped_column(primary_key=True)
    confirmed: Mapped[bool] = mapped_column(default=False)


@set_up("flask-complete-tx")
async def complete_tx(bench: Bench) -> AsyncIterator[None]:
    async with bench.app.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await bench.rows("insert into bookings values (3, false)")
    bench.names |= {"Booking": Booking, "Session": Session, "current": current}
    yield
    async with bench.app.engine.begin() as connection:
        await bench.names["count_booking"].using(session=connection).enqueue(booking_id=3)
    await bench.drain()
    assert await bench.rows("select confirmed from bookings") == [(True,)]
    assert await bench.ends() == [("count_booking", "succeeded")]


@set_up("testing-plugin")
async def plugin(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await place(bench, 7)
    bench.names["Jobs"] = Jobs
    yield
    await asyncio.to_thread(bench.names["test_a_paid_order_is_sent"], Jobs(bench.app))
    assert await state_of(bench, 7) == "paid"


@set_up("testing-plugin-session")
async def plugin_session(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await place(bench, 7)
    bench.names["Jobs"] = Jobs
    yield
    async with AsyncSession(bench.app.engine) as session:
        await bench.names["test_a_paid_order_is_sent"](Jobs(bench.app), session)
    assert await state_of(bench, 7) == "placed"
