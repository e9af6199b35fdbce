"""Contract, section 6: cancel requests and expiry."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, Cancel, Fail, Retry, Snooze, current, pause_queue, request_cancel
from akadze._async.transitions import cancel_doomed
from akadze._connections import async_caller
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


async def cancel(app: Akadze, *job_ids: int) -> None:
    async with app.engine.begin() as connection:
        for job_id in job_ids:
            await request_cancel(connection, job_id)


async def pause(app: Akadze, queue: str) -> None:
    async with app.engine.begin() as connection:
        await pause_queue(connection, queue)


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize("paused", [False, True])
async def test_a_queued_job_that_was_asked_to_cancel_ends_without_a_start(
    app: Akadze, table: Table, serve: Serve, paused: bool
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    ready = await enqueue(task)
    planned = await enqueue(task, delay=timedelta(days=1))
    await cancel(app, ready, planned)
    if paused:
        await pause(app, "default")
    await serve()
    for job_id in (ready, planned):
        row = await table.ended(job_id)
        assert (row["state"], row["run_count"], row["attempt"], row["expired"]) == ("cancelled", 0, 0, False)
        assert row["finished_at"] >= row["cancel_requested_at"]
        assert (row["result"], row["errors"]) == (None, [])


async def test_a_request_made_while_a_worker_waits_is_applied(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    job_id = await enqueue(task, delay=timedelta(days=1))
    await serve()
    await cancel(app, job_id)
    row = await table.ended(job_id)
    assert (row["state"], row["run_count"]) == ("cancelled", 0)


async def test_queued_jobs_are_cancelled_also_while_every_slot_is_taken(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()

    @app.task("task")
    async def task() -> None:
        await release.wait()

    running = await enqueue(task)
    await serve(slots=1)
    await table.in_state(running, "running")
    waiting = await enqueue_many(task, [{}] * 3)
    expiring = await enqueue(task, expires_at=soon(0.2))
    await cancel(app, *waiting)
    await table.ended(*waiting, expiring)
    assert {row["state"] for row in await table.jobs(*waiting, expiring)} == {"cancelled"}
    assert (await table.job(running))["state"] == "running"
    release.set()
    assert (await table.ended(running))["state"] == "succeeded"


async def test_a_worker_cancels_jobs_of_its_own_queues_only(app: Akadze, table: Table, serve: Serve) -> None:
    async def body() -> None:
        pass

    mine = await enqueue(app.register(body, name="mine", queue="mine"))
    other = await enqueue(app.register(body, name="other", queue="other"))
    await cancel(app, mine, other)
    await serve(queues=["mine"])
    assert (await table.ended(mine))["state"] == "cancelled"
    assert (await table.job(other))["state"] == "queued"


async def test_jobs_of_tasks_that_the_worker_does_not_know_are_cancelled_too(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    async def body() -> None:
        pass

    newer = Akadze(database_url=database_url)
    job_id = await enqueue(newer.register(body, name="unknown"))
    await newer.aclose()
    await cancel(app, job_id)
    app.register(body, name="known")
    await serve()
    assert (await table.ended(job_id))["state"] == "cancelled"


async def test_more_cancelled_jobs_than_one_batch_all_end(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    await enqueue_many(task, [{}] * 1200, delay=timedelta(days=1))
    await table.rows("update akadze.jobs set cancel_requested_at = now()")
    await serve()
    await table.until("select count(*) = 1200 from akadze.jobs where state = 'cancelled'")


async def _raises() -> None:
    raise ValueError("after the request")


async def _retries() -> None:
    raise Retry(timedelta(0))


async def _snoozes() -> None:
    raise Snooze(timedelta(0))


async def _cancels() -> None:
    raise Cancel("after the request")


async def _fails() -> None:
    raise Fail("after the request")


async def _times_out() -> None:
    await asyncio.sleep(600)


async def _returns_nonsense() -> object:
    return object()


async def _returns() -> int:
    return 1


async def _returns_nothing() -> None:
    pass


async def _raises_in_its_block() -> None:
    async with current().complete_tx() as connection:
        await connection.execute(text("select 1"))
        raise ValueError("inside the block")


async def _completes_and_raises() -> None:
    async with current().complete_tx() as connection:
        await connection.execute(text("select 1"))
    raise ValueError("after the block")


@pytest.mark.parametrize(
    ("body", "state", "attempt"),
    [
        # The request spends no attempt, the errors of a run do.
        (_raises, "cancelled", 1),
        (_retries, "cancelled", 1),
        (_snoozes, "cancelled", 0),
        (_cancels, "cancelled", 0),
        (_fails, "cancelled", 1),
        (_times_out, "cancelled", 1),
        (_returns_nonsense, "cancelled", 1),
        (_raises_in_its_block, "cancelled", 1),
        (_returns, "succeeded", 0),
        (_returns_nothing, "succeeded", 0),
        (_completes_and_raises, "succeeded", 0),
    ],
)
async def test_a_running_job_that_was_asked_to_cancel_ends_by_what_its_body_does(
    app: Akadze, table: Table, serve: Serve, body: Any, state: str, attempt: int
) -> None:
    release = asyncio.Event()
    starts: list[int] = []

    async def task() -> Any:
        starts.append(1)
        await release.wait()
        return await body()

    timeout = timedelta(seconds=1) if body is _times_out else None
    job_id = await enqueue(app.register(task, name="task", max_attempts=5, backoff=at_once, timeout=timeout))
    served = await serve()
    await table.in_state(job_id, "running")
    await cancel(app, job_id)
    assert (await table.job(job_id))["state"] == "running"
    release.set()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["expired"]) == (state, attempt, 1, False)
    assert row["snoozes"] == (1 if body is _snoozes else 0)
    assert row["result"] == (1 if body is _returns else None)
    await served.stop()
    assert starts == [1]


async def test_a_running_job_is_not_interrupted_by_a_request_that_its_worker_has_seen_to(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()
    interrupted: list[int] = []

    @app.task("task")
    async def task() -> str:
        try:
            await release.wait()
        except asyncio.CancelledError:
            interrupted.append(current().job.id)
            raise
        return "done"

    running = await enqueue(task)
    await serve(slots=1, heartbeat_interval=0.05)
    await table.in_state(running, "running")
    waiting = await enqueue(task)
    await cancel(app, running, waiting)
    assert (await table.ended(waiting))["state"] == "cancelled"
    last = await table.value("select heartbeat_at from akadze.workers")
    await table.until("select heartbeat_at > %s from akadze.workers", last)
    assert (await table.job(running))["state"] == "running"
    release.set()
    row = await table.ended(running)
    assert (row["state"], row["result"], row["run_count"], interrupted) == ("succeeded", "done", 1, [])


async def test_a_cancelled_job_keeps_the_error_of_its_last_run(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=5, backoff=at_once)
    async def task() -> None:
        await cancel(app, current().job.id)
        raise ValueError("the reason")

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("cancelled", ["ValueError"])


async def test_a_running_job_that_was_asked_to_cancel_ends_cancelled_when_its_worker_stops(
    app: Akadze, table: Table, serve: Serve
) -> None:
    moves: list[tuple[str, str]] = []
    app.hooks.on_transition.append(lambda connection, job, before, after: moves.append((before, after)))

    @app.task("task")
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=0.1)
    await table.in_state(job_id, "running")
    await cancel(app, job_id)
    await served.stop()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("cancelled", 0, 1)
    assert moves == [("queued", "running"), ("running", "cancelled")]


async def test_a_request_in_an_open_transaction_delays_only_the_outcome_of_its_own_job(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()

    @app.task("task")
    async def task(n: int) -> int:
        await release.wait()
        return n

    jobs = await enqueue_many(task, [{"n": n} for n in range(3)])
    await serve(slots=3)
    for job_id in jobs:
        await table.in_state(job_id, "running")
    async with app.engine.begin() as connection:
        await request_cancel(connection, jobs[0])
        release.set()
        assert (await table.ended(*jobs[1:]))["state"] == "succeeded"
        # And new ones go on being run.
        assert (await table.ended(await enqueue(task, {"n": 9})))["state"] == "succeeded"
        assert (await table.job(jobs[0]))["state"] == "running"
    # The body had returned: that wins.
    assert (await table.ended(jobs[0]))["state"] == "succeeded"


@pytest.mark.parametrize("paused", [False, True])
async def test_a_queued_job_past_its_expiry_is_cancelled_as_expired_without_a_start(
    app: Akadze, table: Table, serve: Serve, paused: bool
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    past = await enqueue(task, expires_at=soon(-1))
    planned = await enqueue(task, delay=timedelta(days=1), expires_at=soon(0.3))
    if paused:
        await pause(app, "default")
    await serve()
    for job_id in (past, planned):
        row = await table.ended(job_id)
        assert (row["state"], row["expired"], row["run_count"], row["attempt"]) == ("cancelled", True, 0, 0)
        assert row["finished_at"] >= row["expires_at"]
        assert row["cancel_requested_at"] is None


@pytest.mark.parametrize("by", ["upkeep", "enqueue"])
async def test_a_job_that_expires_during_a_transaction_ends_after_its_expiry(
    app: Akadze, table: Table, by: str
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    async with app.engine.begin() as connection:
        await connection.execute(text("select now()"))  # the time at which this transaction began
        job_id = await enqueue(task, expires_at=soon(0.2), unique_key="k")
        await table.until("select expires_at < clock_timestamp() from akadze.jobs where id = %s", job_id)
        if by == "upkeep":
            await cancel_doomed(async_caller(connection), [], None)
        else:
            await task.using(session=connection, unique_key="k").enqueue()
    row = await table.job(job_id)
    assert (row["state"], row["expired"]) == ("cancelled", True)
    assert row["finished_at"] >= row["expires_at"]


async def test_a_job_that_starts_before_its_expiry_runs_on(app: Akadze, table: Table, serve: Serve) -> None:
    release = asyncio.Event()

    @app.task("task")
    async def task() -> None:
        await release.wait()

    job_id = await enqueue(task, expires_at=soon(0.5))
    await serve()
    await table.in_state(job_id, "running")
    await table.until("select expires_at < now() from akadze.jobs where id = %s", job_id)
    release.set()
    row = await table.ended(job_id)
    assert (row["state"], row["expired"]) == ("succeeded", False)


async def test_a_retry_past_its_expiry_is_cancelled(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", backoff=lambda attempt: timedelta(days=1))
    async def task() -> None:
        raise ValueError("first")

    job_id = await enqueue(task, expires_at=soon(0.5))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["expired"], row["run_count"], row["attempt"]) == ("cancelled", True, 1, 1)
    assert row["error_names"] == ["ValueError"]
    assert row["finished_at"] >= row["expires_at"]


async def test_a_job_both_asked_to_cancel_and_past_its_expiry_is_not_called_expired(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    job_id = await enqueue(task, expires_at=soon(-1))
    await cancel(app, job_id)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["expired"]) == ("cancelled", False)
