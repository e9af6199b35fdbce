"""The set-ups of docs/limits.md, docs/schedules.md, docs/testing.md and docs/from-celery.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, text

from akadze import AkadzeError, current, list_limits
from akadze.testing import assert_enqueued, drain
from tests.docs.bench import Bench
from tests.docs.setups import set_up
from tests.docs.shop import open_shop, place, state_of


@set_up("limits-set")
async def limits_set(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    yield
    (limit,) = await list_limits(bench.app.engine)
    assert (limit.key, limit.max_running, limit.max_starts, limit.window) == ("carrier", 4, 100, timedelta(minutes=1))
    assert await bench.rows("select task, limit_key from akadze.jobs") == [("send_parcel", "carrier")]


@set_up("limits-clear")
async def limits_clear(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await bench.rows("insert into akadze.limits (key, max_running) values ('carrier', 1)")
    printed: list[object] = []
    bench.names["print"] = printed.append
    yield
    assert printed == [()]


@set_up("fair")
async def fair(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    bench.names["many_mails"] = [{"to": f"{number}@example.org", "subject": "Hello"} for number in range(20)]
    yield
    found = await bench.rows("select limit_key, count(*) from akadze.jobs group by 1 order by 1")
    assert found == [("tenant:1", 20), ("tenant:2", 1)]


@set_up("schedules-both")
async def schedules_both(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    yield
    async with bench.app.engine.begin() as connection:
        await bench.names["send_invoices"].using(session=connection).enqueue()
        await bench.names["refresh_rates"].using(session=connection).enqueue()
    await bench.drain()
    assert await bench.ends() == [("send_invoices", "succeeded"), ("refresh_rates", "succeeded")]
    assert bench.names["send_invoices"].queue == "billing"


@set_up("schedules-added")
async def schedules_added(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    for name in ("clean_up", "count_orders"):
        bench.app.register(lambda: None, name=name)
    yield
    with pytest.raises(AkadzeError, match="not registered"):
        bench.app.add_schedule("no_such_task", cron="15 3 * * *")


@set_up("schedules-grace")
async def schedules_grace(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    bench.names["Akadze"] = type(bench.app)
    yield
    assert bench.names["app"].grace == timedelta(minutes=15)


@set_up("schedules-refused")
async def schedules_refused(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    printed: list[object] = []
    bench.names["print"] = printed.append
    yield
    assert "can never fire" in str(printed)
    assert "never" not in bench.app.tasks


async def open_testing(bench: Bench) -> None:
    """The shop, with an order 7 that is sent once it is paid."""
    await open_shop(bench)
    await place(bench, 7)
    order = bench.names["Order"]

    @bench.app.task("send_order")
    async def send_order(order_id: int) -> None:
        async with current().complete_tx() as connection:
            sent = bench.names["update"](order).where(order.id == order_id).values(state="sent")
            await connection.execute(sent)

    @bench.app.task("take_money")
    async def charge_order(order_id: int) -> None:
        async with current().complete_tx() as connection:
            await send_order.using(session=connection).enqueue(order_id=order_id)

    async def order_state(order_id: int) -> str:
        return await state_of(bench, order_id)

    bench.names |= {
        "charge_order": charge_order,
        "drain": drain,
        "assert_enqueued": assert_enqueued,
        "order_state": order_state,
        "Connection": Connection,
    }


@set_up("testing-drain")
async def testing_drain(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    yield
    await bench.names["test_a_paid_order_is_sent"]()


@set_up("testing-failure")
async def testing_failure(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    await bench.rows(
        "insert into akadze.jobs (task, queue, args, max_attempts) values ('send_mail', 'mail', '{\"wrong\": 1}', 1)"
    )
    yield
    assert await bench.ends() == [("send_mail", "failed")]


@set_up("testing-retries")
async def testing_retries(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    yield
    await bench.names["test_nobody_opens_at_first"]()


@set_up("testing-enqueued")
async def testing_enqueued(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    async with bench.app.engine.begin() as connection:
        task = bench.names["send_mail"]
        await task.using(session=connection).enqueue(to="customer@example.org", subject="Order 7")
    yield
    with pytest.raises(AssertionError):
        await assert_enqueued(bench.app, "send_mail", to="customer@example.org", subject="Order 8")


@set_up("testing-session")
async def testing_session(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    yield
    async with bench.app.engine.connect() as connection:
        transaction = await connection.begin()
        await bench.names["test_a_paid_order_is_sent"](connection)
        await transaction.rollback()
    assert await state_of(bench, 7) == "placed"


@set_up("testing-blocking")
async def testing_blocking(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    order = bench.names["Order"]

    @bench.app.task("charge_blocking")
    def charge_order(order_id: int) -> None:
        import akadze.sync

        with akadze.sync.current().complete_tx() as connection:
            connection.execute(bench.names["update"](order).where(order.id == order_id).values(state="sent"))

    bench.names["charge_order"] = charge_order
    yield

    def run() -> None:
        with bench.app.sync_engine.connect() as connection:
            transaction = connection.begin()
            bench.names["test_a_paid_order_is_sent"](connection)
            transaction.rollback()

    await asyncio.to_thread(run)
    assert await bench.ends() == []


@set_up("testing-fn")
async def testing_fn(bench: Bench) -> AsyncIterator[None]:
    @bench.app.task("add_up")
    async def add_up(first: int, second: int) -> int:
        return first + second

    bench.names["add_up"] = add_up
    yield


@set_up("celery-enqueue")
async def celery_enqueue(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    bench.names |= {"engine": bench.app.sync_engine, "order": bench.names["Order"](customer="customer@example.org")}
    yield
    await bench.drain()
    assert await bench.rows("select state from orders") == [("paid",)]


@set_up("celery-chain")
async def celery_chain(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)

    async def make_sizes(image_id: int) -> None: ...

    @bench.app.task("publish_image")
    async def publish_image(image_id: int) -> None: ...

    bench.names |= {"make_sizes": make_sizes, "publish_image": publish_image}
    yield
    async with bench.app.engine.begin() as connection:
        await bench.names["resize_image"].using(session=connection).enqueue(image_id=7)
    await bench.drain()
    assert await bench.ends() == [("resize_image", "succeeded"), ("publish_image", "succeeded")]


@set_up("celery-chord")
async def celery_chord(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    exports = Table("exports", MetaData(), Column("id", Integer, primary_key=True), Column("left", Integer))
    async with bench.app.engine.begin() as connection:
        await connection.run_sync(exports.metadata.create_all)

    async def write_page(export_id: int, page: int) -> None: ...

    @bench.app.task("send_export")
    async def send_export(export_id: int) -> None: ...

    bench.names |= {"exports": exports, "write_page": write_page, "send_export": send_export}
    yield
    async with bench.app.engine.begin() as connection:
        await bench.names["start_export"](connection, 1, 5)
    await bench.drain()
    assert await bench.ends() == [("export_page", "succeeded")] * 5 + [("send_export", "succeeded")]


@set_up("celery-result")
async def celery_result(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    bench.names |= {"json": json, "text": text}

    @bench.app.task("write_report")
    async def write_report() -> str:
        return "all is well"

    yield
    assert await bench.names["report_of"](7) is None
    async with bench.app.engine.begin() as connection:
        await write_report.using(session=connection, meta={"order": 7}).enqueue()
    await bench.drain()
    assert await bench.names["report_of"](7) == "all is well"


@set_up("testing-planned")
async def testing_planned(bench: Bench) -> AsyncIterator[None]:
    await open_testing(bench)
    bench.names["text"] = text
    async with bench.app.engine.begin() as connection:
        task = bench.names["send_mail"].using(session=connection, delay=timedelta(days=1))
        await task.enqueue(to="customer@example.org", subject="Order 7")
    yield
    assert await bench.ends() == [("send_mail", "succeeded")]
