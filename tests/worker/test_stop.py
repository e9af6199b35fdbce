"""Contract, section 8: stopping a worker: no new claims, a wait for what runs, and what is left goes back."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import psycopg
import pytest

from akadze import Akadze, AkadzeError, Worker, current, list_workers
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many


async def test_a_worker_that_stops_claims_nothing_more_and_lets_its_jobs_end(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()

    @app.task("task")
    async def task() -> int:
        await release.wait()
        return 1

    running = await enqueue_many(task, [{}] * 2)
    served = await serve(slots=3, shutdown_timeout=30)
    for job_id in running:
        await table.in_state(job_id, "running")
    served.stopping.set()
    await until(lambda: served.worker._serving is not None and served.worker._serving._loop.stopping)
    late = await enqueue(task)
    last = await table.value("select heartbeat_at from akadze.workers")
    await table.until("select heartbeat_at > %s from akadze.workers", last)
    assert (await table.job(late))["state"] == "queued"
    release.set()
    await served.join()
    assert [(row["state"], row["run_count"]) for row in await table.jobs(*running)] == [("succeeded", 1)] * 2
    row = await table.job(late)
    assert (row["state"], row["run_count"]) == ("queued", 0)
    assert await list_workers(app.engine) == ()


async def test_heartbeats_go_on_while_a_stopping_worker_waits_so_nobody_takes_its_jobs(
    app: Akadze, table: Table, serve: Serve
) -> None:
    runs: list[object] = []
    release = asyncio.Event()

    @app.task("task")
    async def task() -> None:
        runs.append(current().job.worker_id)
        await release.wait()

    job_id = await enqueue(task)
    first = await serve(heartbeat_interval=0.05, heartbeat_ttl=0.8, shutdown_timeout=30)
    await table.in_state(job_id, "running")
    await serve(heartbeat_interval=0.05)
    stopped = time.monotonic()
    first.stopping.set()
    await until(lambda: time.monotonic() > stopped + 1.6)
    assert first.up
    release.set()
    await first.join()
    row = await table.job(job_id)
    assert (row["state"], row["run_count"], row["attempt"], runs) == ("succeeded", 1, 0, [first.id])


async def test_after_the_shutdown_timeout_jobs_are_stopped_and_go_back_without_an_attempt(
    app: Akadze, table: Table, serve: Serve
) -> None:
    stopped: list[str] = []

    @app.task("async")
    async def async_task() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append("async")

    release = threading.Event()

    @app.task("sync")
    def sync_task() -> None:
        release.wait(30)

    jobs = [await enqueue(async_task), await enqueue(sync_task)]
    served = await serve(slots=2, shutdown_timeout=0.5)
    for job_id in jobs:
        await table.in_state(job_id, "running")
    begun = time.monotonic()
    await served.stop()
    # All the time that was given, and not that of the default, which is 10 s.
    assert 0.5 <= time.monotonic() - begun < 10
    for row in await table.jobs(*jobs):
        assert (row["state"], row["attempt"], row["run_count"], row["errors"]) == ("queued", 0, 1, [])
        assert row["run_at"] == row["created_at"]
        assert row["worker_id"] is None
    assert stopped == ["async"]
    release.set()


async def test_hurry_hands_back_at_once(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=600)
    await table.in_state(job_id, "running")
    served.stopping.set()
    await asyncio.sleep(0)
    assert served.up
    served.worker.hurry()
    await served.join()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"]) == ("queued", 0)


async def test_what_a_stopped_body_returns_or_raises_in_its_last_moment_is_not_taken_for_an_outcome(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise ValueError("in the middle of it") from None

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=0)
    await table.in_state(job_id, "running")
    await served.stop()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["errors"]) == ("queued", 0, [])


async def test_a_body_that_ends_well_in_its_last_moment_has_succeeded(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "saved"
        return "slept"

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=0)
    await table.in_state(job_id, "running")
    await served.stop()
    row = await table.job(job_id)
    assert (row["state"], row["result"]) == ("succeeded", "saved")


async def test_a_body_that_swallows_its_cancellation_is_named_and_left_behind(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_END", 0.2)
    release = asyncio.Event()

    @app.task("stubborn")
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    job_id = await enqueue(stubborn)
    served = await serve(shutdown_timeout=0)
    await table.in_state(job_id, "running")
    await served.stop()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"]) == ("queued", 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"job {job_id} of task stubborn" in warning for warning in warnings)
    release.set()
    await asyncio.sleep(0)


async def test_a_claim_that_is_under_way_when_the_worker_is_told_to_stop_goes_back(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    ran: list[int] = []

    @app.task("task", max_attempts=1)
    async def task() -> None:
        ran.append(1)
        await asyncio.sleep(600)

    # Slow enough that the lock is sure to be there before the claim is.
    served = await serve(poll_interval=600, notify=False, shutdown_timeout=0)
    job_id = await enqueue(task)
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        await blocker.execute("lock table akadze.queue_pauses in access exclusive mode")
        assert served.worker._serving is not None
        served.worker._serving._loop._next_survey = float("inf")
        served.worker._serving._loop.wake()
        await table.until(f"select count(*) = 1 {SESSIONS} and wait_event_type = 'Lock'")
        served.stopping.set()
        await until(lambda: served.worker._serving is None or served.worker._serving._loop.closing)
    await served.join()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["errors"], row["worker_id"]) == ("queued", 0, [], None)
    assert await list_workers(app.engine) == ()


async def test_a_claim_whose_answer_was_lost_while_the_worker_stops_goes_back(
    app: Akadze, table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from akadze._worker.exchange import Exchange

    @app.task("task", max_attempts=1)
    async def task() -> None:
        await asyncio.sleep(600)

    served = await serve()
    exchange = Exchange.exchange

    async def lost(self: Exchange, *arguments: Any) -> Any:
        answer = await exchange(self, *arguments)
        if answer.rows:
            served.stopping.set()
            await until(lambda: served.worker._serving is not None and served.worker._serving._loop.stopping)
            raise psycopg.OperationalError("the connection broke after the commit")
        return answer

    monkeypatch.setattr(Exchange, "exchange", lost)
    job_id = await enqueue(task)
    await served.join()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["errors"]) == ("queued", 0, 1, [])


async def test_jobs_between_claim_and_body_are_not_forgotten(app: Akadze, table: Table, serve: Serve) -> None:
    async def slowly(job: Any) -> None:
        await asyncio.sleep(0.2)

    app.hooks.before_run.append(slowly)

    @app.task("task", max_attempts=1)
    async def task() -> None:
        await asyncio.sleep(0.2)

    await enqueue_many(task, [{}] * 60)
    served = await serve(slots=20, shutdown_timeout=0.1)
    await table.until("select count(*) > 0 from akadze.jobs where state = 'running'")
    await served.stop()
    rows = await table.rows("select state, attempt, errors, count(*) from akadze.jobs group by 1, 2, 3")
    assert {row["state"] for row in rows} <= {"queued", "succeeded"}
    assert {(row["attempt"], str(row["errors"])) for row in rows} == {(0, "[]")}
    assert sum(row["count"] for row in rows) == 60


async def test_a_lease_that_ends_while_the_worker_waits_at_its_stop_is_an_error(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    @app.task("task")
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    served = await serve(heartbeat_interval=0.1, heartbeat_ttl=0.6, shutdown_timeout=600)
    await table.in_state(job_id, "running")
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        await blocker.execute("select from akadze.workers for update")
        served.stopping.set()
        await table.in_state(job_id, "queued")
    assert isinstance(await served.failed(), AkadzeError)
    assert (await table.job(job_id))["attempt"] == 0


async def test_a_serve_that_is_cancelled_hands_its_jobs_back(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=600)
    await table.in_state(job_id, "running")
    served.task.cancel()
    await asyncio.wait([served.task], timeout=20)
    assert served.task.cancelled()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"]) == ("queued", 0)
    assert await list_workers(app.engine) == ()


async def test_a_worker_may_serve_again_after_it_has_stopped_but_not_twice_at_once(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    served = await serve()
    with pytest.raises(AkadzeError, match="serves already"):
        await served.worker.serve(asyncio.Event())
    await served.stop()
    assert served.worker.id is None
    stop = asyncio.Event()
    again = asyncio.create_task(served.worker.serve(stop))
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    stop.set()
    await again


async def test_a_stop_that_was_set_before_the_start_ends_at_once(app: Akadze, table: Table) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    job_id = await enqueue(task)
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(Worker(app).serve(stop), 20)
    assert (await table.job(job_id))["state"] == "queued"
    assert await list_workers(app.engine) == ()


async def test_a_stop_in_the_middle_of_the_registration_leaves_no_row(
    app: Akadze, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from akadze._worker.heartbeat import Heartbeat

    stop = asyncio.Event()
    register = Heartbeat.register

    async def registered(self: Heartbeat) -> None:
        await register(self)
        stop.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Heartbeat, "register", registered)
    app.register(_nothing, name="task")
    await asyncio.wait_for(Worker(app).serve(stop), 20)
    assert await list_workers(app.engine) == ()


async def _nothing() -> None:
    pass


async def test_nothing_of_a_stopped_worker_is_left_in_the_process_or_on_the_server(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task")
    def task() -> None:
        pass

    job_id = await enqueue(task)
    tasks, threads = len(asyncio.all_tasks()), threading.active_count()
    served = await serve()
    await table.ended(job_id)
    # All its connections are open: SQLAlchemy lets one go late whose opening is cancelled.
    await table.until("select sleeping from akadze.workers")
    await table.until(f"select count(*) >= 4 {SESSIONS} and state = 'idle' and query <> ''")
    await served.stop()
    await app.engine.dispose()
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    await until(lambda: threading.active_count() <= threads)
    await table.until(f"select count(*) = 0 {SESSIONS}")


@pytest.mark.parametrize("gone", ["jobs", "workers"])
async def test_nothing_of_a_worker_that_failed_is_left_on_the_server(
    app: Akadze, table: Table, serve: Serve, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("task")
    async def task() -> None:
        await asyncio.Event().wait()

    job_id = await enqueue(task)
    served = await serve()
    await table.in_state(job_id, "running")
    await table.rows(f"alter table akadze.{gone} rename to elsewhere")
    await served.failed()
    await app.engine.dispose()
    await table.until(f"select count(*) = 0 {SESSIONS}")
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told.startswith(f'worker {served.id} stops: relation "akadze.{gone}" does not exist')
    assert "\n" not in told, "on further lines the server quotes statements"
