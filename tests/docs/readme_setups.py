"""The set-ups of README.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from akadze import AkadzeError, DuplicateJob, list_limits
from tests.docs.bench import Bench
from tests.docs.setups import set_up
from tests.docs.shop import NewOrder, open_shop, place, state_of
from tests.waiting import until


@set_up("order")
async def order(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    yield
    assert await bench.rows("select id from orders") == [(7,)]
    await bench.drain()
    assert await bench.ends() == [("send_mail", "succeeded")]


@set_up("endpoint")
async def endpoint(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    yield
    async with AsyncSession(bench.app.engine) as session:
        order_id = await bench.names["create_order"](NewOrder("customer@example.org"), session)
    await bench.drain()
    assert await state_of(bench, order_id) == "paid"


@set_up("view")
async def view(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    bench.names["engine"] = bench.app.sync_engine
    yield
    order_id = await asyncio.to_thread(bench.names["create_order"], "customer@example.org")
    await bench.drain()
    assert await state_of(bench, order_id) == "paid"


@set_up("psycopg")
async def with_psycopg(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    yield
    await bench.drain()
    assert await state_of(bench, 8) == "paid"


@set_up("options")
async def options(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    async with bench.app.engine.begin() as bench.names["connection"]:
        yield
    columns = "run_at, expires_at, priority, max_attempts, limit_key, meta"
    (job,) = await bench.rows(f"select {columns} from akadze.jobs")
    now = datetime.now(UTC)
    assert now + timedelta(minutes=50) < job[0] < now + timedelta(hours=1)
    assert now + timedelta(hours=23) < job[1] < now + timedelta(days=1)
    assert job[2:] == (5, 10, "mail-server", {"order": 7})


@set_up("unique")
async def unique(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    task = bench.names["charge_order"]
    async with bench.app.engine.begin() as bench.names["connection"]:
        connection = bench.names["connection"]
        yield
        with pytest.raises(DuplicateJob):
            await task.using(session=connection, unique_key="charge-7").enqueue(order_id=7)
    assert await bench.ends() == [("charge_order", "queued")]


@set_up("many")
async def many(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    bench.names["customers"] = ["customer-1@example.org", "customer-2@example.org"]
    async with bench.app.engine.begin() as bench.names["connection"]:
        yield
    found = await bench.rows("select args ->> 'to', priority from akadze.jobs order by id")
    assert found == [("customer-1@example.org", -1), ("customer-2@example.org", -1)]


@set_up("serve")
async def serve(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    async with bench.app.engine.begin() as connection:
        await bench.names["send_parcel"].using(session=connection).enqueue(order_id=7)

    async def stop() -> None:
        async def done() -> bool:
            return await bench.ends() == [("send_parcel", "succeeded")]

        await until(done)
        bench.names["stop"].set()

    stopping = asyncio.create_task(stop())
    yield
    await stopping


@set_up("outcomes")
async def outcomes(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    kept: list[Any] = []

    async def ask_for(report_id: int) -> SimpleNamespace:
        if report_id == 0:
            raise ConnectionError
        return SimpleNamespace(status=report_id)

    async def store(reply: SimpleNamespace) -> None:
        kept.append(reply)

    bench.names |= {"ask_for": ask_for, "store": store}
    yield
    async with bench.app.engine.begin() as connection:
        await (
            bench.names["fetch_report"]
            .using(session=connection)
            .enqueue_many({"report_id": status} for status in (200, 503, 202, 404, 410, 0))
        )
    await bench.drain()
    wait = "cast(round(extract(epoch from run_at - created_at)) as integer)"
    found = await bench.rows(f"select state, attempt, snoozes, {wait} from akadze.jobs order by id")
    assert len(kept) == 1
    assert [row[:3] for row in found] == [
        ("succeeded", 0, 0),
        ("queued", 1, 0),
        ("queued", 0, 1),
        ("failed", 1, 0),
        ("cancelled", 0, 0),
        ("queued", 1, 0),
    ]
    assert [found[number][3] for number in (1, 2, 5)] == pytest.approx([600, 30, 60], abs=5)


@set_up("schedules")
async def schedules(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    yield
    assert {"send_reminders", "refresh_rates"} < set(bench.app.tasks)
    with pytest.raises(AkadzeError, match="registered already"):
        bench.app.periodic("send_reminders", cron="0 7 * * *")(lambda: None)


@set_up("limits")
async def limits(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    async with bench.app.engine.begin() as bench.names["connection"]:
        yield
    (limit,) = await list_limits(bench.app.engine)
    assert (limit.key, limit.max_running, limit.max_starts, limit.window) == ("carrier", 4, 100, timedelta(minutes=1))
    await bench.drain()
    assert await bench.ends() == [("send_parcel", "succeeded")]


@set_up("test-drain")
async def test_drain(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)

    async def create_order(form: NewOrder, session: AsyncSession) -> int:
        order = bench.names["Order"](customer=form.customer)
        session.add(order)
        await session.flush()
        await bench.names["charge_order"].using(session=session).enqueue(order_id=order.id)
        order_id: int = order.id
        await session.commit()
        return order_id

    bench.names["create_order"] = create_order
    yield
    async with AsyncSession(bench.app.engine) as session:
        await bench.names["test_an_order_is_charged"](session)


@set_up("test-session")
async def test_session(bench: Bench) -> AsyncIterator[None]:
    from akadze.testing import drain

    await open_shop(bench)
    await place(bench, 7)
    bench.names["drain"] = drain
    yield
    async with bench.app.engine.connect() as connection:
        transaction = await connection.begin()
        await bench.names["test_an_order_is_charged"](connection)
        await transaction.rollback()
    assert await state_of(bench, 7) == "placed"
    assert await bench.ends() == []


@set_up("operation")
async def operation(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await bench.rows(
        "insert into akadze.jobs (id, task, queue, state, attempt, meta) overriding system value"
        " values (17, 'send_mail', 'mail', 'failed', 3, '{\"order\": 7}'),"
        " (18, 'charge_order', 'default', 'queued', 0, '{}')"
    )
    yield
    (limit,) = await list_limits(bench.app.engine)
    assert (limit.key, limit.max_running) == ("carrier", 4)
    found = await bench.rows("select id, state, cancel_requested_at is not null from akadze.jobs order by id")
    assert found == [(17, "queued", False), (18, "queued", True)]
    assert await bench.rows("select 1 from akadze.queue_pauses") == []
