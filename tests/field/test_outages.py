"""Contract, sections 1, 5 and 7: a database that goes away or closes its connections, and poolers in front of it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from akadze import Akadze, dev
from akadze.task import Task
from tests.database import create_database, with_database
from tests.families import FULL
from tests.faults.pooler import PROGRAM, pooled
from tests.field.world import World
from tests.processes import Process
from tests.waiting import wait_until
from tests.worker.table import SESSIONS, Table, enqueue

QUICK = """
@app.task(name="quick")
async def quick():
    with logged():
        pass
"""
TERMINATE = f"select pg_terminate_backend(pid) {SESSIONS}"


@FULL
@pytest.mark.heavy
def test_b013_a_break_of_the_database_does_not_end_a_worker(
    own_world: World, own_server: dev.Server, full: bool
) -> None:
    worker = own_world.worker(QUICK, heartbeat_ttl=30)
    for outages, stop in enumerate((lambda: own_server.stop("fast"), own_server.kill), 1):
        stop()
        wait_until(lambda said=outages: worker.stderr.count("the database is out of reach") >= said)
        time.sleep(10 if full else 0.5)
        own_server.start()
        [job_id] = own_world.enqueue("quick")

        own_world.in_state(job_id, "succeeded")
        # Each of its connections comes back by itself; until the last has, an outage is the same one.
        wait_until(lambda said=outages: worker.stderr.count("the database is back") >= said)

    assert {row["pid"] for row in own_world.rows("select pid from public.runs")} == {worker.pid}
    assert worker.returncode is None


@FULL
@pytest.mark.heavy
def test_b015_a_database_that_refuses_writes_for_a_while_loses_no_job(own_world: World, full: bool) -> None:
    source = """
    @app.task(name="short")
    async def short():
        await asyncio.sleep(float(os.environ["SECONDS"]))
    """
    jobs = own_world.enqueue("short", 100, max_attempts=3)
    # The lease has to outlast what a failover takes.
    worker = own_world.worker(source, slots=3, heartbeat_ttl=15, environment={"SECONDS": "0.2" if full else "0.05"})
    with own_world.connect() as control:  # a session from before, which may write on
        own_world.until("select count(*) > 20 from akadze.jobs where state = 'succeeded'")
        control.execute("alter database akadze_field_test set default_transaction_read_only = on")
        control.execute(TERMINATE)
        refused = "select now() - heartbeat_at > make_interval(secs => %s) from akadze.workers"
        own_world.until(refused, 5 if full else 1)
        # The listener may be back, which only reads, before the others have found out.
        before, _, after = worker.stderr.rpartition("out of reach or refuses")
        assert before
        assert "the database is back" not in after
        control.execute("alter database akadze_field_test reset default_transaction_read_only")
        control.execute(TERMINATE)

    own_world.until("select count(*) = 100 from akadze.jobs where state = 'succeeded'")

    rows = [own_world.job(job_id) for job_id in jobs]
    assert {row["attempt"] for row in rows} == {0}
    assert {row["run_count"] for row in rows} <= {1, 2}
    assert worker.returncode is None


_ENQUEUER = """
import asyncio, os
import psycopg
from akadze import Akadze

URL, COUNT = os.environ["AKADZE_DATABASE_URL"], int(os.environ["COUNT"])
app = Akadze(database_url=URL)


@app.task(name="quick")
async def quick():
    pass


async def main():
    for _ in range(COUNT):
        async with app.engine.begin() as connection:
            await quick.using(session=connection).enqueue()
    for _ in range(COUNT):
        with app.sync_engine.begin() as connection:
            quick.using(session=connection).enqueue()
    with psycopg.connect(URL, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(COUNT):
            quick.using(session=connection).enqueue()
        for _ in range(10):
            quick.using(session=connection).enqueue_many([{}] * (COUNT // 5))

asyncio.run(main())
"""


@FULL
@pytest.mark.heavy
@pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")
def test_b016_everything_works_through_a_pooler_in_transaction_mode(
    tmp_path: Path, own_server: dev.Server, full: bool
) -> None:
    count = 50 if full else 10
    jobs = 2 * 5 * count
    create_database(own_server.url(), "akadze_pooled_test")
    with pooled(own_server.url(), tmp_path) as url:
        world = World(tmp_path, with_database(url, "akadze_pooled_test"))
        try:
            world.rows("drop schema akadze cascade")
            assert world.command("migrate").wait() == 0
            served = [world.spawn(QUICK, slots=5, heartbeat_ttl=15) for _ in range(2)]
            enqueuing = [
                Process(
                    ["-c", _ENQUEUER],
                    directory=tmp_path,
                    name=f"enqueuer{number}",
                    environment={"AKADZE_DATABASE_URL": world.url, "COUNT": str(count)},
                    program=Path(sys.executable),
                )
                for number in range(2)
            ]
            try:
                assert [process.wait() for process in enqueuing] == [0, 0]
            finally:
                for process in enqueuing:
                    process.end()
            world.until("select count(*) = %s from akadze.jobs where state = 'succeeded'", jobs)
            for worker in served:
                worker.terminate()
            assert [worker.wait() for worker in served] == [0, 0]
            assert world.counts() == {"succeeded": jobs}
            assert world.value("select max(run_count) from akadze.jobs") == 1
            assert world.rows("select count(*), count(distinct job_id) as jobs from public.runs") == [
                {"count": jobs, "jobs": jobs}
            ]
            for process in (*served, *enqueuing):
                assert "prepared statement" not in process.stderr
        finally:
            world.end()


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_b018_an_application_enqueues_again_after_the_server_has_closed_its_connections(
    app: Akadze, table: Table, world: World, colour: str
) -> None:
    @app.task("quick")
    async def task() -> None:
        pass

    worker = world.worker(QUICK)
    # More than one connection waits in the pool.
    await asyncio.gather(*[_enqueued(task, colour) for _ in range(4)])
    await table.rows(TERMINATE)
    await table.until(f"select count(*) > 0 {SESSIONS}")  # the worker's new ones

    try:
        job_id = await _enqueued(task, colour)
    except DBAPIError:
        job_id = await _enqueued(task, colour)

    assert (await table.ended(job_id))["state"] == "succeeded"
    assert [row["pid"] for row in world.rows("select distinct pid from public.runs")] == [worker.pid]
    assert worker.returncode is None


async def _enqueued(task: Task[Any], colour: str) -> int:
    def blocking() -> int:
        with task.app.sync_engine.begin() as connection:
            task.using(session=connection).enqueue()
            found = connection.execute(text("select currval(pg_get_serial_sequence('akadze.jobs', 'id'))"))
            return int(found.scalar_one())

    return await (enqueue(task) if colour == "async" else asyncio.to_thread(blocking))


@FULL
@pytest.mark.parametrize("poll_interval", [1, 600])
async def test_b020_jobs_start_at_once_after_every_connection_of_a_worker_was_lost(
    app: Akadze, table: Table, world: World, poll_interval: float
) -> None:
    @app.task("quick")
    async def quick() -> None:
        pass

    delays: list[float] = []

    async def measure() -> None:
        for _ in range(10):
            async with app.engine.begin() as connection:
                await quick.using(session=connection).enqueue()
            committed = await table.value("select clock_timestamp()")
            await table.until("select count(*) = 0 from akadze.jobs where state <> 'succeeded'")
            started = await table.value("select max(started_at) from akadze.jobs")
            delays.append((started - committed).total_seconds())
            await table.until("select sleeping from akadze.workers")

    worker = world.worker(QUICK, poll_interval=poll_interval)
    others = [row["pid"] for row in await table.rows(f"select pid {SESSIONS}")]
    await table.until("select sleeping from akadze.workers")
    await measure()
    for pid in others:
        beat = await table.value("select heartbeat_at from akadze.workers")
        await table.rows("select pg_terminate_backend(%s)", pid)
        await table.until(f"select count(*) = 0 {SESSIONS} and pid = %s", pid)
        await table.until("select heartbeat_at > %s from akadze.workers", beat)
    await app.engine.dispose()
    await table.until("select sleeping from akadze.workers")
    await measure()

    assert max(delays) < 1.5
    assert worker.returncode is None


@FULL
@pytest.mark.heavy
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_b021_a_pool_that_is_smaller_than_the_slots_makes_jobs_wait_and_no_more(
    world: World, colour: str, full: bool
) -> None:
    source = """
    import akadze.sync
    from sqlalchemy import create_engine, text
    from sqlalchemy.ext.asyncio import create_async_engine

    url = os.environ["AKADZE_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://")
    small = {"pool_size": 2, "max_overflow": 0}
    app = Akadze(engine=create_async_engine(url, **small), sync_engine=create_engine(url, **small))
    hold = float(os.environ["HOLD"])

    @app.task(name="async")
    async def body():
        async with current().complete_tx() as connection:
            await connection.execute(text("select 1"))
            await asyncio.sleep(hold)

    @app.task(name="sync")
    def sync_body():
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text("select 1"))
            time.sleep(hold)
    """
    options = {"slots": 6, "heartbeat_interval": 0.2, "heartbeat_ttl": 3 if full else 1}
    worker = world.worker(source, environment={"HOLD": "4" if full else "0.6"}, **options)
    jobs = world.enqueue(colour, 12)

    world.until("select count(*) = 12 from akadze.jobs where finished_at is not null")

    assert {(row["state"], row["run_count"], row["attempt"]) for row in map(world.job, jobs)} == {("succeeded", 1, 0)}
    assert worker.returncode is None
