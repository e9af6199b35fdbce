"""Contract, section 4: states, counters and the list of errors."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from akadze import Akadze, Cancel, Fail, Retry, Snooze, current, request_cancel, requeue
from akadze.errors import RunLost
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

NOW = timedelta(0)


def at_once(attempt: int) -> timedelta:
    return NOW


async def test_a_job_goes_from_queued_over_running_to_succeeded(app: Akadze, table: Table, serve: Serve) -> None:
    release = asyncio.Event()

    @app.task("wait")
    async def wait() -> int:
        await release.wait()
        return 7

    job_id = await enqueue(wait)
    queued = await table.job(job_id)
    assert (queued["state"], queued["run_count"], queued["worker_id"], queued["started_at"]) == (
        "queued",
        0,
        None,
        None,
    )
    served = await serve()
    running = await table.in_state(job_id, "running")
    assert (running["run_count"], running["worker_id"], running["finished_at"]) == (1, served.id, None)
    assert running["started_at"] >= queued["created_at"]
    release.set()
    done = await table.ended(job_id)
    assert (done["state"], done["result"], done["run_count"], done["attempt"]) == ("succeeded", 7, 1, 0)
    assert done["worker_id"] is None
    assert done["finished_at"] >= done["started_at"]
    assert done["errors"] == []


class NotJson:
    pass


async def _error() -> None:
    raise ValueError("broken")


async def _retry() -> None:
    raise Retry(NOW)


async def _fail() -> None:
    raise Fail("pointless")


async def _too_slow() -> None:
    await asyncio.sleep(600)


async def _unusable_result() -> object:
    return NotJson()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (_error, "ValueError"),
        (_retry, "Retry"),
        (_fail, "Fail"),
        (_too_slow, "TimeoutError"),
        (_unusable_result, "ResultNotJson"),
    ],
)
async def test_an_error_a_retry_a_timeout_and_an_unusable_result_spend_an_attempt(
    app: Akadze, table: Table, serve: Serve, body: Any, name: str
) -> None:
    timeout = timedelta(seconds=0.1) if body is _too_slow else None
    task = app.register(body, name="task", max_attempts=1, timeout=timeout)
    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["snoozes"]) == ("failed", 1, 1, 0)
    assert row["error_names"] == [name]


async def test_a_job_succeeds_on_a_later_attempt_and_keeps_what_went_before(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=3, backoff=at_once)
    async def task() -> int:
        if current().job.attempt < 2:
            raise ValueError(f"attempt {current().job.attempt}")
        return current().job.run_count

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["result"]) == ("succeeded", 2, 3, 3)
    assert [entry["message"] for entry in row["errors"]] == ["attempt 0", "attempt 1"]


async def test_a_job_fails_when_its_last_attempt_is_spent(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=2, backoff=at_once)
    async def task() -> None:
        raise ValueError("again")

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 2, 2)


async def test_fail_ends_a_job_that_has_attempts_left(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=5, backoff=at_once)
    async def task() -> None:
        raise Fail("no such customer")

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 1, 1)
    assert row["errors"][0]["message"] == "no such customer"


@pytest.mark.parametrize("reason", ["", "not needed any more"])
async def test_cancel_ends_a_job_and_spends_no_attempt(app: Akadze, table: Table, serve: Serve, reason: str) -> None:
    @app.task("task", max_attempts=5)
    async def task() -> None:
        raise Cancel(reason)

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["expired"]) == ("cancelled", 0, 1, False)
    assert [entry["message"] for entry in row["errors"]] == ([reason] if reason else [])


async def test_snoozes_are_counted_and_spend_no_attempt_however_many(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> str:
        if current().job.snoozes < 100:
            raise Snooze(NOW)
        return "awake"

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["result"], row["attempt"], row["snoozes"]) == ("succeeded", "awake", 0, 100)
    assert row["run_count"] == 101
    assert row["errors"] == []


async def test_a_job_handed_back_at_a_stop_has_spent_no_attempt(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=0)
    await table.in_state(job_id, "running")
    await served.stop()
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["snoozes"]) == ("queued", 0, 1, 0)
    assert (row["errors"], row["worker_id"]) == ([], None)


async def test_a_job_keeps_its_last_ten_errors(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=13, backoff=at_once)
    async def task() -> None:
        raise ValueError(f"attempt {current().job.attempt}")

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert row["attempt"] == 13
    assert [entry["message"] for entry in row["errors"]] == [f"attempt {number}" for number in range(3, 13)]


async def test_an_error_is_kept_as_type_message_and_time_all_text(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> None:
        raise LookupError("nothing there")

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    (entry,) = row["errors"]
    assert entry["error"] == "LookupError"
    assert entry["message"] == "nothing there"
    at = datetime.fromisoformat(entry["at"])
    assert at.utcoffset() == NOW
    assert abs(at - row["finished_at"]) < timedelta(minutes=1)
    assert all(isinstance(value, str) for value in entry.values())


@pytest.mark.parametrize("owner", ["another run", "another worker", "nobody"])
@pytest.mark.parametrize("outcome", ["return", "error", "snooze", "cancel"])
async def test_a_run_that_lost_its_job_writes_nothing(
    app: Akadze, table: Table, serve: Serve, owner: str, outcome: str
) -> None:
    release = asyncio.Event()

    @app.task("task", max_attempts=5)
    async def task() -> int:
        await release.wait()
        if outcome == "error":
            raise ValueError("late")
        if outcome == "snooze":
            raise Snooze(timedelta(hours=1))
        if outcome == "cancel":
            raise Cancel("late")
        return 1

    @app.task("probe", priority=1)
    async def probe() -> None:
        pass

    job_id = await enqueue(task)
    # Its look for claims whose answer was lost, which would hand a made-up run back, comes no sooner than this.
    await serve(heartbeat_interval=60, heartbeat_ttl=300)
    await table.in_state(job_id, "running")
    # A rescue and perhaps another claim, as they look from here.
    if owner == "another run":
        change = "run_count = run_count + 1, attempt = 1"
    elif owner == "another worker":
        elsewhere = await table.add_worker(ttl=60, silent_for=0)
        change = f"worker_id = '{elsewhere}', run_count = run_count + 1, attempt = 1"
    else:
        change = "state = 'queued', worker_id = null, attempt = 1, run_at = now() + interval '1 hour'"
    await table.rows(f"update akadze.jobs set {change} where id = %s", job_id)
    before = await table.job(job_id)
    release.set()
    # The slot is free when the outcome has been dropped.
    assert (await table.ended(await enqueue(probe)))["state"] == "succeeded"
    assert await table.job(job_id) == before


async def test_a_complete_tx_block_of_a_run_that_lost_its_job_is_rolled_back(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()
    raised: list[BaseException] = []
    await table.rows("create table public.done (number int)")

    @app.task("task")
    async def task() -> None:
        await release.wait()
        try:
            async with current().complete_tx() as connection:
                await connection.exec_driver_sql("insert into public.done values (1)")
        except RunLost as error:
            raised.append(error)
            raise

    job_id = await enqueue(task)
    # Its look for claims whose answer was lost, which would hand a made-up run back, comes no sooner than this.
    await serve(heartbeat_interval=60, heartbeat_ttl=300)
    await table.in_state(job_id, "running")
    await table.rows("update akadze.jobs set run_count = run_count + 1 where id = %s", job_id)
    before = await table.job(job_id)
    release.set()
    await until(lambda: raised)
    assert "no longer owns job" in str(raised[0])
    assert await table.rows("select * from public.done") == []
    assert await table.job(job_id) == before


async def test_a_requeued_job_runs_again_each_time_with_its_old_errors(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=3, backoff=at_once)
    async def task() -> None:
        raise ValueError(f"run {current().job.run_count}")

    job_id = await enqueue(task)
    await serve()
    assert (await table.ended(job_id))["attempt"] == 3
    for attempts in (4, 5):
        async with app.engine.begin() as connection:
            await requeue(connection, job_id)
        await table.until("select attempt = %s from akadze.jobs where id = %s", attempts, job_id)
        row = await table.ended(job_id)
        assert (row["state"], row["attempt"], row["max_attempts"]) == ("failed", attempts, attempts)
        assert [entry["message"] for entry in row["errors"]] == [f"run {number}" for number in range(1, attempts + 1)]


async def test_a_job_that_has_spent_every_attempt_there_can_be_is_requeued_and_fails_again(
    app: Akadze, table: Table, serve: Serve
) -> None:
    most = 2**31 - 1

    @app.task("task", max_attempts=most)
    async def task() -> None:
        raise ValueError("again")

    job_id = await enqueue(task)
    await table.rows("update akadze.jobs set state = 'failed', attempt = %s where id = %s", most, job_id)
    async with app.engine.begin() as connection:
        await requeue(connection, job_id)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["max_attempts"]) == ("failed", most, most)


@pytest.mark.parametrize("edge", [2**31 - 3, 2**53 - 2])
async def test_ids_and_arguments_beyond_32_and_53_bits_are_exact(
    app: Akadze, table: Table, serve: Serve, edge: int
) -> None:
    await table.rows("select setval(pg_get_serial_sequence('akadze.jobs', 'id'), %s)", edge)
    seen: list[tuple[int, int]] = []
    number = 10**30

    @app.task("task", max_attempts=1)
    async def task(n: int, how: str) -> int:
        seen.append((current().job.id, n))
        if how == "fail" and current().job.run_count == 1:
            raise ValueError("once")
        if how == "wait" and current().job.run_count == 1:
            await asyncio.sleep(600)
        return n

    lost = await enqueue(
        task,
        {
            "n": number,
            "how": "return",
        },
        max_attempts=3,
    )
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), lost)
    returned = await enqueue(task, {"n": 2**53 + 1, "how": "return"})
    failed = await enqueue(task, {"n": number, "how": "fail"})
    cancelled = await enqueue(task, {"n": number, "how": "return"}, delay=timedelta(hours=1))
    handed_back = await enqueue(task, {"n": number, "how": "wait"})
    assert handed_back > edge + 4
    served = await serve(slots=5, shutdown_timeout=0)
    await table.ended(returned, failed)
    async with app.engine.begin() as connection:
        await requeue(connection, failed)
        await request_cancel(connection, cancelled)
    await table.until("select run_count = 2 from akadze.jobs where id = %s", failed)
    await table.ended(failed, cancelled, lost)
    await served.stop()
    assert (await table.job(handed_back))["state"] == "queued"
    await serve()
    await table.ended(handed_back)
    states = await table.states()
    assert [states[job] for job in (lost, returned, failed, cancelled, handed_back)] == [
        "succeeded",
        "succeeded",
        "succeeded",
        "cancelled",
        "succeeded",
    ]
    assert set(seen) == {(returned, 2**53 + 1)} | {(job, number) for job in (failed, lost, handed_back)}
