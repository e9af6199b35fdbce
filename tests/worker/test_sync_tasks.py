"""Contract, section 5: plain functions run in threads of the worker's own."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy.orm import Session

import akadze.sync
from akadze import Akadze, Retry, Snooze, current, list_workers
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


async def test_as_many_plain_functions_run_at_once_as_there_are_slots(app: Akadze, table: Table, serve: Serve) -> None:
    together = threading.Barrier(4)

    @app.task("task")
    def task() -> int:
        together.wait(10)
        return threading.get_ident()

    jobs = await enqueue_many(task, [{}] * 4)
    await serve(slots=4)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {row["state"] for row in rows} == {"succeeded"}
    idents = {row["result"] for row in rows}
    assert len(idents) == 4
    assert threading.main_thread().ident not in idents


async def test_the_threads_are_the_workers_own_and_not_those_of_the_loop(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = threading.Event()
    loop = asyncio.get_running_loop()

    @app.task("task")
    def task() -> None:
        release.wait(30)

    jobs = await enqueue_many(task, [{}] * 2)
    await serve(slots=2)
    loop.set_default_executor(ThreadPoolExecutor(1))
    await table.until("select count(*) = 2 from akadze.jobs where state = 'running'")
    # Neither has taken the other's only place.
    assert await asyncio.to_thread(lambda: "free") == "free"
    taken = loop.run_in_executor(None, release.wait, 30)
    jobs.append(await enqueue(app.register(lambda: release.set(), name="release", queue="other")))
    await serve(queues=["other"])
    await table.ended(*jobs)
    assert await taken
    assert {row["state"] for row in await table.jobs(*jobs)} == {"succeeded"}


async def test_a_plain_function_may_run_a_loop_of_its_own(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    def task() -> str:
        return asyncio.run(asyncio.sleep(0, "slept"))

    job_id = await enqueue(task)
    await serve()
    assert (await table.ended(job_id))["result"] == "slept"


async def test_a_plain_function_that_blocks_holds_up_neither_the_loop_nor_the_heartbeat(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = threading.Event()

    @app.task("slow")
    def slow() -> None:
        release.wait(30)

    @app.task("quick")
    async def quick() -> None:
        pass

    blocked = await enqueue(slow)
    served = await serve(slots=2, heartbeat_interval=0.05, heartbeat_ttl=1)
    await table.in_state(blocked, "running")
    started = time.monotonic()
    while time.monotonic() < started + 1.2:
        row = await table.ended(await enqueue(quick))
        assert row["state"] == "succeeded"
    assert [worker.id for worker in await list_workers(app.engine)] == [served.id]
    assert await table.value("select now() - heartbeat_at < interval '1 s' from akadze.workers")
    release.set()
    row = await table.ended(blocked)
    assert (row["state"], row["run_count"]) == ("succeeded", 1)


async def test_threads_are_used_again(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    def task() -> str:
        return threading.current_thread().name

    jobs = await enqueue_many(task, [{}] * 20)
    await serve(slots=2)
    await table.ended(*jobs)
    assert len({row["result"] for row in await table.jobs(*jobs)}) <= 3


async def test_a_plain_function_raises_what_an_async_one_may(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=3, backoff=lambda attempt: timedelta(0))
    def task() -> str:
        job = akadze.sync.current().job
        if job.run_count == 1:
            raise Retry
        if job.run_count == 2:
            raise Snooze(timedelta(0))
        if job.run_count == 3:
            raise ValueError("third")
        return "fourth"

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["result"], row["attempt"], row["snoozes"]) == ("fourth", 2, 1)
    assert row["error_names"] == ["Retry", "ValueError"]


async def test_a_plain_function_that_outlives_its_timeout_is_retried_and_takes_no_slot(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = threading.Event()
    running = threading.Semaphore(0)

    @app.task("task", timeout=timedelta(seconds=0.1), max_attempts=2, backoff=lambda attempt: timedelta(0))
    def task() -> str:
        running.release()
        release.wait(30)
        return "late"

    @app.task("next")
    def following() -> str:
        return "ran"

    job_id = await enqueue(task)
    await serve(slots=1)
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 2, 2)
    assert row["error_names"] == ["TimeoutError", "TimeoutError"]
    assert (await table.ended(await enqueue(following)))["result"] == "ran"
    # What the threads return in the end changes nothing.
    release.set()
    await until(lambda: running.acquire(blocking=False))
    await table.ended(await enqueue(following))
    assert (await table.job(job_id))["state"] == "failed"


async def test_registering_a_plain_function_with_a_timeout_logs_a_warning(
    app: Akadze, caplog: pytest.LogCaptureFixture
) -> None:
    app.register(_nothing, name="plain", timeout=timedelta(seconds=1))
    (record,) = [record for record in caplog.records if record.name == "akadze.app"]
    assert record.levelname == "WARNING"
    assert "plain" in record.getMessage()


def _nothing() -> None:
    pass


async def test_a_body_enqueues_jobs_whatever_its_colour(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    @app.task("next")
    async def following(n: int) -> int:
        return n

    @app.task("with psycopg")
    def with_psycopg() -> None:
        with psycopg.connect(database_url) as connection:
            following.using(session=connection).enqueue(n=1)

    @app.task("with a session")
    def with_session() -> None:
        with Session(app.sync_engine) as session, session.begin():
            following.using(session=session).enqueue(n=2)

    @app.task("with the engine")
    async def with_engine() -> None:
        async with app.engine.begin() as connection:
            await following.using(session=connection).enqueue(n=3)

    @app.task("with complete_tx")
    async def with_complete_tx() -> None:
        async with current().complete_tx() as connection:
            await following.using(session=connection).enqueue(n=4)

    @app.task("with sync complete_tx")
    def with_sync_complete_tx() -> None:
        with akadze.sync.current().complete_tx() as connection:
            following.using(session=connection).enqueue(n=5)

    @app.task("and fails", max_attempts=1)
    async def and_fails() -> None:
        async with current().complete_tx() as connection:
            await following.using(session=connection).enqueue(n=6)
            raise ValueError("after the enqueue")

    @app.task("and fails, too", max_attempts=1)
    def and_fails_too() -> None:
        with akadze.sync.current().complete_tx() as connection:
            following.using(session=connection).enqueue(n=7)
            raise ValueError("after the enqueue")

    good = [with_psycopg, with_session, with_engine, with_complete_tx, with_sync_complete_tx]
    jobs = [await enqueue(task) for task in good]
    failing = [await enqueue(and_fails), await enqueue(and_fails_too)]
    await serve(slots=3)
    await table.ended(*jobs, *failing)
    await table.until("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')")
    assert {row["state"] for row in await table.jobs(*jobs)} == {"succeeded"}
    assert {row["state"] for row in await table.jobs(*failing)} == {"failed"}
    results = await table.rows("select result from akadze.jobs where task = 'next' order by 1")
    assert [row["result"] for row in results] == [1, 2, 3, 4, 5]
