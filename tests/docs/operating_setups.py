"""The set-ups of docs/operating.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
import pytest

from akadze import Akadze, Worker, list_jobs, queue_snapshot
from akadze.job import Job
from akadze.metrics import render_metrics
from tests.docs.bench import Bench
from tests.docs.setups import set_up
from tests.docs.shop import open_shop
from tests.waiting import until


async def add_jobs(bench: Bench) -> None:
    """A failed mail, number 17, and a charge that waits, number 18."""
    await bench.rows(
        "insert into akadze.jobs (id, task, queue, state, attempt, finished_at, meta) overriding system value"
        " values (17, 'send_mail', 'mail', 'failed', 3, now(), '{\"order\": 7}'),"
        " (18, 'charge_order', 'default', 'queued', 0, null, '{}')"
    )


@set_up("operating-act")
async def act(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await add_jobs(bench)
    yield
    found = await bench.rows("select id, state, cancel_requested_at is not null from akadze.jobs order by id")
    assert found == [(17, "queued", False), (18, "queued", True)]
    assert await bench.rows("select 1 from akadze.queue_pauses") == []


@set_up("operating-functions")
async def functions(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await add_jobs(bench)
    printed: list[tuple[object, ...]] = []
    bench.names["print"] = lambda *values: printed.append(values)
    yield
    assert printed == [(17, "send_mail", "queued")]
    assert await bench.rows("select queue from akadze.queue_pauses") == [("mail",)]


@set_up("operating-left")
async def left(bench: Bench) -> AsyncIterator[None]:
    await add_jobs(bench)
    yield


@set_up("operating-sql")
async def by_sql(bench: Bench) -> AsyncIterator[None]:
    await add_jobs(bench)
    yield


@set_up("operating-metrics")
async def metrics(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await add_jobs(bench)

    @dataclass
    class Response:
        text: str
        media_type: str

    bench.names |= {"Response": Response, "render_metrics": render_metrics}
    yield
    response = await bench.names["metrics"]()
    assert 'akadze_jobs{queue="mail",state="failed"} 1\n' in response.text


@set_up("operating-hooks")
async def hooks(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    await add_jobs(bench)
    outcomes: Counter[tuple[str, str]] = Counter()
    bench.names |= {"outcomes": outcomes, "Job": Job}
    yield
    await bench.rows("update akadze.jobs set args = '{\"order_id\": 7}'")
    await bench.drain()
    assert outcomes == {("charge_order", "running"): 1, ("charge_order", "succeeded"): 1}


@set_up("operating-hosts")
async def hosts(bench: Bench) -> AsyncIterator[None]:
    bench.names["Akadze"] = Akadze
    yield
    url = bench.names["app"].engine.url
    assert "db1" in str(url)
    assert "db2" in str(url)
    assert url.query["target_session_attrs"] == "read-write"


@set_up("operating-grants")
async def grants(bench: Bench) -> AsyncIterator[None]:
    await open_shop(bench)
    async with await psycopg.AsyncConnection.connect(bench.url, autocommit=True) as connection:
        may = await connection.execute("select rolcreaterole or rolsuper from pg_roles where rolname = current_user")
        there = await connection.execute("select 1 from pg_roles where rolname = 'app'")
        if await may.fetchone() != (True,) or await there.fetchone():
            pytest.skip("the page names a role app, which this server has, or does not let us make")
        await connection.execute("create role app")
        try:
            yield
            await work_as_app(bench)
        finally:
            await connection.execute("drop owned by app")
            await connection.execute("drop role app")


async def work_as_app(bench: Bench) -> None:
    """Enqueue, read and work with the rights of the role app alone."""
    separator = "&" if "?" in bench.url else "?"
    app = Akadze(database_url=f"{bench.url}{separator}options=-c%20role%3Dapp")

    @app.task("who")
    async def who() -> None: ...

    async with app.engine.begin() as connection:
        assert await connection.scalar(bench.names["select"](bench.names["func"].current_user())) == "app"
        await who.using(session=connection, unique_key="k").enqueue()
    stop = asyncio.Event()
    worker = asyncio.create_task(Worker(app).serve(stop))

    async def done() -> bool:
        assert not worker.done(), worker.exception()
        return await bench.ends() == [("who", "succeeded")]

    try:
        await until(done)
        assert (await queue_snapshot(app.engine)).busy == 0
        assert len(await list_jobs(app.engine)) == 1
    finally:
        stop.set()
        await worker
        await app.aclose()
