"""Contract, sections 3, 5 and 12: runs that block, time out, end in odd ways, are cancelled or enqueue."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import psycopg
import psycopg_pool
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import akadze.sync
import akadze.sync.testing
from akadze import Akadze, current, list_workers
from akadze.testing import drain
from tests.connections.alchemy import url_for
from tests.families import FULL
from tests.field.world import OPTIONS, World
from tests.waiting import PATIENCE, until
from tests.worker.serving import Serve
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many


@FULL
@pytest.mark.heavy
async def test_b030_a_body_that_blocks_holds_up_neither_the_beats_nor_other_bodies(
    app: Akadze, table: Table, world: World, full: bool
) -> None:
    # Seconds: more than a lease, and how old a beat may become.
    blocked, silent = (12.0, 1.5) if full else (5.0, 2.5)
    source = """
    @app.task(name="slow")
    def slow():
        time.sleep(float(os.environ["SECONDS"]))

    @app.task(name="quick")
    async def quick():
        pass
    """

    @app.task("slow")
    def slow() -> None: ...

    @app.task("quick")
    async def quick() -> None: ...

    short = {"heartbeat_interval": 0.1, "heartbeat_ttl": 3, "poll_interval": 0.1}
    options = {**(OPTIONS if full else short), "slots": 2}
    served = [world.spawn(source, environment={"SECONDS": str(blocked)}, **options) for _ in range(2)]
    await table.until("select count(*) = 2 from akadze.workers")
    slow_id = await enqueue(slow)
    # One of them has it; the other has nothing to do but the quick ones.
    first = (await table.in_state(slow_id, "running"))["worker_id"]

    quick_ids: list[int] = []
    silences = []
    while (await table.job(slow_id))["state"] == "running":
        if not quick_ids or (await table.job(quick_ids[-1]))["state"] == "succeeded":
            quick_ids.append(await enqueue(quick))
        workers = {worker.id: worker for worker in await list_workers(app.engine)}
        now: datetime = await table.value("select clock_timestamp()")
        silences.append(now - workers[first].heartbeat_at)
        await asyncio.sleep(0.05)

    row = await table.job(slow_id)
    assert (row["state"], row["run_count"], row["worker_id"]) == ("succeeded", 1, None)
    await table.ended(*quick_ids)
    assert len(quick_ids) >= 5
    assert max(row["started_at"] - row["created_at"] for row in await table.jobs(*quick_ids)) < timedelta(
        seconds=silent
    )
    assert max(silences) < timedelta(seconds=silent)
    assert [process.returncode for process in served] == [None, None]


async def test_b032_a_run_over_its_time_spends_an_attempt_and_waits_for_its_backoff(
    app: Akadze, table: Table, serve: Serve
) -> None:
    runs: list[list[float]] = []

    @app.task("slow", timeout=timedelta(seconds=0.3), max_attempts=2, backoff=lambda attempt: timedelta(seconds=1))
    async def slow() -> None:
        run = [time.monotonic()]
        runs.append(run)
        try:
            await asyncio.sleep(600)
        finally:
            run.append(time.monotonic())

    job_id = await enqueue(slow, max_attempts=2)
    await serve(**OPTIONS)
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 2, 2)
    assert row["error_names"] == ["TimeoutError", "TimeoutError"]
    assert all("took longer than its timeout of 0:00:00.3" in entry["message"] for entry in row["errors"])
    [(_, ended), (started, _)] = runs
    assert started - ended >= 1


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("timeout", [None, timedelta(seconds=60)])
async def test_b033_a_timeout_error_of_the_body_s_own_is_an_error_like_others(
    app: Akadze, table: Table, serve: Serve, kind: str, timeout: timedelta | None
) -> None:
    async def async_body() -> None:
        raise TimeoutError("upstream")

    def sync_body() -> None:
        raise TimeoutError("upstream")

    body: Callable[[], Any] = async_body if kind == "async" else sync_body
    task = app.register(body, name="task", timeout=timeout, max_attempts=2, backoff=lambda attempt: timedelta(0))
    job_id = await enqueue(task)
    await serve(**OPTIONS)
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 2, 2)
    assert [(entry["error"], entry["message"]) for entry in row["errors"]] == [("TimeoutError", "upstream")] * 2


async def test_b033_a_time_limit_inside_the_body_is_not_the_run_s(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("caught", timeout=timedelta(seconds=60))
    async def caught() -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(600)
        return "went on"

    @app.task("raised", timeout=timedelta(seconds=60), max_attempts=1)
    async def raised() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(600)

    jobs = [await enqueue(caught), await enqueue(raised)]
    await serve(**OPTIONS)
    await table.ended(*jobs)
    first, second = await table.jobs(*jobs)
    assert (first["state"], first["result"]) == ("succeeded", "went on")
    assert (second["state"], second["error_names"]) == ("failed", ["TimeoutError"])
    assert "took longer" not in second["errors"][0]["message"]


ODD_ENDS = """
class Odd(BaseException):
    pass

def exit(): sys.exit(3)
def interrupt(): raise KeyboardInterrupt
def close(): raise GeneratorExit
def odd(): raise Odd("odd")

def task_of(name, end):
    async def in_a_task():
        async def child():
            end()
        await asyncio.create_task(child())

    async def in_a_group():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(600))
            group.create_task(child_of(end))

    async def child_of(end):
        end()

    async def async_body():
        end()

    app.register(async_body, name=f"async {name}", max_attempts=1)
    app.register(end, name=f"sync {name}", max_attempts=1)
    app.register(in_a_task, name=f"task {name}", max_attempts=1)
    app.register(in_a_group, name=f"group {name}", max_attempts=1)

for name, end in {"SystemExit": exit, "KeyboardInterrupt": interrupt, "GeneratorExit": close, "Odd": odd}.items():
    task_of(name, end)

@app.task("harmless")
async def harmless():
    pass
"""


def _fails_alone(world: World, *kinds: str) -> None:
    process = world.worker(ODD_ENDS, slots=2)
    names = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "Odd")
    jobs = {world.enqueue(f"{kind} {name}", max_attempts=1)[0]: name for kind in kinds for name in names}
    [harmless] = world.enqueue("harmless")
    for job_id, name in jobs.items():
        job = world.in_state(job_id, "failed")
        assert (job["attempt"], job["run_count"]) == (1, 1)
        assert name in str(job["errors"])
    assert world.in_state(harmless, "succeeded")["run_count"] == 1
    assert process.returncode is None
    process.terminate()
    assert process.wait() == 0


def test_b035_what_is_no_exception_fails_the_run_and_not_the_worker(world: World) -> None:
    _fails_alone(world, "async", "sync")


def test_b035_nor_does_it_out_of_a_task_that_the_body_has_started(world: World) -> None:
    _fails_alone(world, "task", "group")


def test_b035_nor_does_it_out_of_such_a_task_in_a_drain(database_url: str) -> None:
    """KeyboardInterrupt ends a blocking drain: somebody pressed Ctrl-C in the test run."""
    app = Akadze(database_url=database_url)

    def register(error: type[BaseException]) -> None:
        async def child() -> None:
            raise error

        async def body() -> None:
            await asyncio.create_task(child())

        app.register(body, name=error.__name__, max_attempts=1)

    for error in (SystemExit, GeneratorExit):
        register(error)
    with app.sync_engine.begin() as connection:
        for task in app.tasks.values():
            task.using(session=connection).enqueue()
    akadze.sync.testing.drain(app)
    with psycopg.connect(database_url) as opened:
        rows = opened.execute("select task, state, errors -> 0 ->> 'error' from akadze.jobs order by id").fetchall()
    app.close()
    assert rows == [(name, "failed", name) for name in ("SystemExit", "GeneratorExit")]


async def test_b035_nor_does_it_out_of_a_task_in_an_async_drain(app: Akadze, table: Table) -> None:
    """The two that leave any loop are left out: here the loop is the caller's."""

    async def child() -> None:
        raise GeneratorExit

    @app.task("task", max_attempts=1)
    async def task() -> None:
        await asyncio.create_task(child())

    job_id = await enqueue(task)
    await drain(app)
    row = await table.job(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["GeneratorExit"])


Opened = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def _engine(url: str) -> AsyncIterator[Opened]:
    engine = create_async_engine(url_for("psycopg", url), pool_size=3, max_overflow=0)
    yield engine.connect
    await engine.dispose()


@asynccontextmanager
async def _pool(url: str) -> AsyncIterator[Opened]:
    async with psycopg_pool.AsyncConnectionPool(url, min_size=3, max_size=3) as pool:
        yield pool.connection


@FULL
@pytest.mark.heavy
@pytest.mark.parametrize("opening", [_engine, _pool])
async def test_b037_a_caller_that_is_cancelled_while_it_enqueues_loses_neither_jobs_nor_connections(
    app: Akadze, database_url: str, table: Table, opening: Callable[[str], Any], full: bool
) -> None:
    """A commit that was sent may have been done when its caller is cancelled: such calls may have a row or not."""
    rounds = 300 if full else 80
    committing: set[int] = set()
    returned: set[int] = set()

    @app.task("task")
    async def task(n: int) -> None: ...

    async def call(opened: Opened, n: int) -> None:
        async with opened() as connection:
            if hasattr(connection, "begin"):
                await connection.begin()
            await task.using(session=connection).enqueue(n=n)
            committing.add(n)
            await connection.commit()
        returned.add(n)

    async with opening(database_url) as opened:
        await call(opened, -1)
        for n in range(rounds):
            with suppress(TimeoutError):
                await asyncio.wait_for(call(opened, n), random.uniform(0, 0.005))
        kept = {row["n"] for row in await table.rows("select cast(args ->> 'n' as integer) as n from akadze.jobs")}
        assert returned <= kept <= committing
        assert len(returned) < rounds, "none was cancelled"
        for n in range(rounds, 2 * rounds):
            await asyncio.wait_for(call(opened, n), 20)
        await until(lambda: _none_in_transaction(table))
        assert await table.value("select count(*) from akadze.jobs") == len(kept) + rounds


async def _none_in_transaction(table: Table) -> bool:
    return bool(await table.value(f"select count(*) = 0 {SESSIONS} and state like 'idle in transaction%%'"))


async def test_b038_plain_functions_run_at_once_each_with_a_loop_of_its_own(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task")
    def task() -> int:
        # Each loop waits for the other three: one after another they would never end.
        asyncio.run(asyncio.to_thread(together.wait, PATIENCE))
        return threading.get_ident()

    together = threading.Barrier(4)
    jobs = await enqueue_many(task, [{}] * 4)
    await serve(**OPTIONS, slots=4)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {row["state"] for row in rows} == {"succeeded"}
    assert len({row["result"] for row in rows}) == 4


async def test_b039_a_running_job_enqueues_in_its_own_transactions_and_not_when_they_fail(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    @app.task("next")
    async def following(of: str) -> None:
        pass

    @app.task("connection", max_attempts=1)
    def connection(fail: bool) -> None:
        with psycopg.connect(database_url) as opened:
            following.using(session=opened).enqueue(of="connection")
            if fail:
                raise ValueError("after the enqueue")

    @app.task("sync engine", max_attempts=1)
    def sync_engine(fail: bool) -> None:
        with app.sync_engine.begin() as opened:
            following.using(session=opened).enqueue(of="sync engine")
            if fail:
                raise ValueError("after the enqueue")

    @app.task("engine", max_attempts=1)
    async def engine(fail: bool) -> None:
        async with app.engine.begin() as opened:
            await following.using(session=opened).enqueue(of="engine")
            if fail:
                raise ValueError("after the enqueue")

    @app.task("complete_tx", max_attempts=1)
    async def completing(fail: bool) -> None:
        async with current().complete_tx() as opened:
            await following.using(session=opened).enqueue(of="complete_tx")
            if fail:
                raise ValueError("after the enqueue")

    @app.task("sync complete_tx", max_attempts=1)
    def completing_sync(fail: bool) -> None:
        with akadze.sync.current().complete_tx() as opened:
            following.using(session=opened).enqueue(of="sync complete_tx")
            if fail:
                raise ValueError("after the enqueue")

    tasks = [connection, sync_engine, engine, completing, completing_sync]
    good = [await enqueue(task, {"fail": False}) for task in tasks]
    bad = [await enqueue(task, {"fail": True}) for task in tasks]
    await serve(**OPTIONS, slots=4)
    await table.ended(*good, *bad)
    await table.until("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')")

    assert {row["state"] for row in await table.jobs(*good)} == {"succeeded"}
    assert {row["state"] for row in await table.jobs(*bad)} == {"failed"}
    followed = await table.rows("select args ->> 'of' as name, state from akadze.jobs where task = 'next' order by 1")
    assert followed == [{"name": name, "state": "succeeded"} for name in sorted(task.name for task in tasks)]
