"""Contract, sections 1, 5 and 8: retention, and what a worker holds of the database while it works."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from akadze import Akadze, Cancel, Fail, current, request_cancel
from akadze._urls import sqlalchemy_url
from tests.families import FULL
from tests.field.world import OPTIONS, World
from tests.worker.serving import Serve
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many

DAY = timedelta(days=1)

ADD_OLD_JOBS = """
insert into akadze.jobs (task, state, created_at, run_at, started_at, finished_at)
select 'old', (array['succeeded', 'failed', 'cancelled'])[1 + n %% 3], then_, then_, then_, then_
from generate_series(1, %s) n, (select now() - interval '1 day' as then_) as o
"""


@pytest.mark.heavy
async def test_b127_workers_that_clean_at_once_do_not_meet_in_deadlocks(
    app: Akadze, table: Table, world: World, full: bool
) -> None:
    source = """
    app = Akadze(
        database_url=os.environ["AKADZE_DATABASE_URL"], retention=timedelta(seconds=1), grace=timedelta(seconds=1)
    )

    @app.task(name="flow", max_attempts=1)
    async def flow():
        note("flowed")
    """

    @app.task("flow", max_attempts=1)
    async def flow() -> None: ...

    old = 20_000 if full else 6_000
    workers = [world.spawn(source) for _ in range(4)]
    await table.until("select count(*) = 4 from akadze.workers")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = await table.value(deadlocks)
    await table.rows("begin")
    await table.rows(ADD_OLD_JOBS, old)
    # Rows whose place in the table is not that of their ids: each walk would meet them in another order.
    await table.rows("update akadze.jobs set priority = 1 where id %% 3 = 0")
    await table.rows("commit")
    enqueued = 0
    remaining = old
    while remaining:
        await enqueue(flow)
        enqueued += 1
        await asyncio.sleep(0.05)
        remaining = await table.value("select count(*) from akadze.jobs where task = 'old'")
    await table.until("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')")
    assert await table.value("select count(*) from public.notes") == enqueued
    assert await table.value("select count(*) = 0 from akadze.jobs where state <> 'succeeded'")
    for worker in workers:
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0] * 4
    assert [line for worker in workers for line in worker.stderr.splitlines() if "INFO" not in line] == []
    with suppress(Exception):  # since PostgreSQL 15 what a session counts is told at once when it is asked to
        await table.value("select pg_stat_force_next_flush()")
    assert await table.value(deadlocks) == before


async def test_b129_each_kind_of_ended_job_goes_and_all_others_stay(
    database_url: str, table: Table, serve: Serve
) -> None:
    app = Akadze(database_url=database_url, retention=timedelta(seconds=1), grace=timedelta(seconds=1))
    release = asyncio.Event()

    async def body(how: str) -> None:
        match how:
            case "fail":
                raise Fail
            case "cancel":
                raise Cancel
            case "wait":
                await release.wait()

    task = app.register(body, name="task")
    paused = app.register(body, name="paused", queue="paused")
    ended = [await enqueue(task, {"how": how}) for how in ("succeed", "fail", "cancel")]
    ended.append(await enqueue(task, {"how": "succeed"}, delay=DAY))
    async with app.engine.begin() as connection:
        await request_cancel(connection, ended[-1])
    ended.append(await enqueue(task, {"how": "succeed"}, expires_at=datetime.now(UTC) - DAY))
    tomorrow = await enqueue(task, {"how": "succeed"}, delay=DAY)
    waiting = await enqueue(paused, {"how": "succeed"})
    running = await enqueue(task, {"how": "wait"})
    await table.rows("insert into akadze.queue_pauses (queue) values ('paused')")
    await table.rows("update akadze.jobs set created_at = now() - interval '1 day'")
    await table.rows("update akadze.jobs set run_at = now() - interval '1 day' where id = %s", waiting)
    await table.rows("insert into akadze.limits (key, max_starts, \"window\") values ('used', 5, interval '10 s');")
    await table.rows(
        "insert into akadze.limit_starts (key, started_at) values"
        " ('unused', now()), ('used', now() - interval '2 minutes'), ('used', now())"
    )
    dead = await table.add_worker(ttl=1, silent_for=100)
    served = await serve(app, **OPTIONS, slots=4)

    await table.until("select count(*) = 3 from akadze.jobs")
    await table.until("select count(*) = 1 from akadze.limit_starts")
    await table.until("select count(*) = 1 from akadze.workers")
    assert await table.states() == {tomorrow: "queued", waiting: "queued", running: "running"}
    assert await table.value("select key from akadze.limit_starts") == "used"
    assert str(await table.value("select id from akadze.workers")) == str(served.id) != dead
    release.set()
    await table.until("select count(*) = 2 from akadze.jobs")
    assert await table.states() == {tomorrow: "queued", waiting: "queued"}
    await served.stop()
    await app.aclose()


@FULL
@pytest.mark.heavy
async def test_b131_running_jobs_pin_no_connection(database_url: str, table: Table, serve: Serve, full: bool) -> None:
    engine = create_async_engine(
        sqlalchemy_url(database_url), pool_size=5, max_overflow=0, connect_args={"prepare_threshold": None}
    )
    app = Akadze(engine=engine)
    release = asyncio.Event()

    @app.task("long")
    async def long() -> None:
        await release.wait()

    @app.task("inside")
    async def inside() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text("select 1"))
            await release.wait()

    sample = (
        "select count(*) as backends, count(*) filter (where state like 'idle in transaction%%') as idle,"
        " count(*) filter (where backend_xmin is not null and clock_timestamp() - xact_start > interval '2 s') as old,"
        " count(*) filter (where state like 'idle in transaction%%'"
        f" and clock_timestamp() - state_change > interval '1 s') as long_idle {SESSIONS}"
    )

    async def watch(seconds: float) -> list[dict[str, Any]]:
        samples = []
        for _ in range(round(seconds / 0.1)):
            samples += await table.rows(sample)
            await asyncio.sleep(0.1)
        return samples

    ids = await enqueue_many(long, [{}] * 40)
    await engine.dispose()
    await serve(app, **OPTIONS, slots=40)
    await table.until("select count(*) = 40 from akadze.jobs where state = 'running'")
    samples = await watch(30 if full else 2.5)
    assert max(row["backends"] for row in samples) <= 5
    assert [row for row in samples if row["long_idle"] or row["old"]] == []
    release.set()
    assert {row["state"] for row in [await table.ended(job_id) for job_id in ids]} == {"succeeded"}

    release.clear()
    one = await enqueue(inside)
    await table.until(f"select count(*) = 1 {SESSIONS} and state = 'idle in transaction'")
    samples = await watch(30 if full else 1.5)
    # Of those that last: any other transaction may be seen between two of its statements.
    assert samples[-1]["long_idle"] == 1
    assert {row["long_idle"] for row in samples} <= {0, 1}
    assert min(row["idle"] for row in samples) == 1
    release.set()
    assert (await table.ended(one))["state"] == "succeeded"
    await app.aclose()
    await engine.dispose()


@pytest.mark.heavy
def test_b132_a_worker_that_is_cleaning_stops_at_once(world: World, full: bool) -> None:
    jobs = 1_000_000 if full else 100_000
    world.rows(ADD_OLD_JOBS, jobs)
    process = world.worker(
        """
        second = timedelta(seconds=1)
        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"], retention=second, grace=second)

        @app.task("task")
        async def task():
            pass
        """,
        shutdown_timeout=600,
    )
    world.until("select not exists (select from akadze.jobs where id = 1)")  # it is in the middle of it
    process.terminate()
    assert process.wait() == 0
    assert "Traceback" not in process.stderr
    left = world.value("select count(*) from akadze.jobs")
    assert 0 < left < jobs
    # What it had under way ended with it.
    world.until(
        f"select count(*) = 0 {SESSIONS}",
        timeout=10,
    )
