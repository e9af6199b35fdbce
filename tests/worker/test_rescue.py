"""Contract, section 7: rescue: what happens to the jobs of a worker that has stopped beating."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from akadze import Akadze, pause_queue, request_cancel, set_limit
from akadze._worker.outage import Outages
from akadze._worker.upkeep import Upkeep
from akadze.task import Task
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


@pytest.fixture
def task(app: Akadze) -> Task[[]]:
    async def body() -> None:
        pass

    return app.register(body, name="task", max_attempts=2, backoff=lambda attempt: timedelta(days=9))


async def lose(table: Table, *job_ids: int) -> str:
    """Let a worker start these jobs and fall silent."""
    worker_id = await table.add_worker(ttl=1, silent_for=2)
    await table.start_elsewhere(worker_id, *job_ids)
    return worker_id


async def test_a_lost_job_spends_an_attempt_and_comes_back_with_the_default_backoff(
    task: Task[[]], table: Table, serve: Serve
) -> None:
    job_id = await enqueue(task)
    lost = await lose(table, job_id)
    # Let it lie there afterwards, to be looked at.
    await table.rows("insert into akadze.queue_pauses (queue) values ('default')")
    await serve()
    row = await table.in_state(job_id, "queued")
    assert (row["attempt"], row["run_count"], row["worker_id"], row["error_names"]) == (1, 1, None, ["WorkerLost"])
    (entry,) = row["errors"]
    assert lost in entry["message"]
    at = datetime.fromisoformat(entry["at"])
    assert timedelta(seconds=0.5) <= row["run_at"] - at <= timedelta(seconds=1)
    await table.rows("delete from akadze.queue_pauses")
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 1, 2)


@pytest.mark.parametrize(("spent", "longest"), [(1, 2), (4, 16), (8, 256), (9, 300), (2147483000, 300)])
async def test_the_backoff_of_a_lost_job_doubles_with_each_attempt_up_to_300_seconds(
    task: Task[[]], table: Table, serve: Serve, spent: int, longest: int
) -> None:
    jobs = await enqueue_many(task, [{}] * 8, max_attempts=2147483647)
    await lose(table, *jobs)
    await table.rows("update akadze.jobs set attempt = %s", spent)
    await serve()
    for job_id in jobs:
        row = await table.in_state(job_id, "queued")
        delay = row["run_at"] - datetime.fromisoformat(row["errors"][0]["at"])
        assert timedelta(seconds=longest / 2) <= delay <= timedelta(seconds=longest)


async def test_of_the_errors_of_a_lost_job_the_last_ten_are_kept(task: Task[[]], table: Table, serve: Serve) -> None:
    job_id = await enqueue(task, max_attempts=1)
    await lose(table, job_id)
    await table.rows(
        "update akadze.jobs set errors = (select jsonb_agg(jsonb_build_object('error', 'E', 'message', cast(n as text),"
        " 'at', '2030-01-01T00:00:00+00:00') order by n) from generate_series(0, 9) as n)"
    )
    await serve()
    row = await table.ended(job_id)
    assert row["error_names"] == ["E"] * 9 + ["WorkerLost"]
    assert [entry["message"] for entry in row["errors"][:-1]] == [str(n) for n in range(1, 10)]
    assert {name: type(value) for name, value in row["errors"][-1].items()} == {"error": str, "message": str, "at": str}


async def test_a_job_that_is_lost_on_its_last_attempt_fails(task: Task[[]], table: Table, serve: Serve) -> None:
    job_id = await enqueue(task, max_attempts=1)
    await lose(table, job_id)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["error_names"]) == ("failed", 1, 1, ["WorkerLost"])
    assert row["finished_at"] is not None


async def test_a_lost_job_that_was_asked_to_cancel_is_cancelled(
    app: Akadze, task: Task[[]], table: Table, serve: Serve
) -> None:
    job_id = await enqueue(task)
    await lose(table, job_id)
    async with app.engine.begin() as connection:
        await request_cancel(connection, job_id)
    await serve()
    row = await table.ended(job_id)
    # The request spends no attempt, the lost worker does.
    assert (row["state"], row["run_count"], row["attempt"], row["error_names"]) == ("cancelled", 1, 1, ["WorkerLost"])


async def test_a_lost_job_past_its_expiry_is_not_started_again(task: Task[[]], table: Table, serve: Serve) -> None:
    job_id = await enqueue(task, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await lose(table, job_id)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["expired"], row["run_count"], row["attempt"]) == ("cancelled", True, 1, 1)


async def test_a_worker_takes_back_only_the_jobs_of_others(app: Akadze, table: Table, serve: Serve) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    own = await enqueue(app.register(wait, name="wait"))
    worker = await serve(queues=["default"])
    await table.in_state(own, "running")
    # As after a jump of the server's clock: each beat is over at once.
    await table.rows("update akadze.workers set heartbeat_ttl = interval '-1 day' where id = %s", worker.id)
    other = await enqueue(app.register(wait, name="other", queue="unserved"))
    await lose(table, other)
    row = await table.in_state(other, "queued")
    assert row["error_names"] == ["WorkerLost"]
    row = await table.job(own)
    assert (row["state"], row["attempt"], row["run_count"]) == ("running", 0, 1)
    gate.set()
    row = await table.ended(own)
    assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 0, 1)


async def test_each_workers_own_ttl_decides_by_the_clock_of_the_database(
    task: Task[[]], table: Table, serve: Serve
) -> None:
    patient, impatient = await enqueue_many(task, [{}] * 2)
    await table.start_elsewhere(await table.add_worker(ttl=3600, silent_for=1800), patient)
    await table.start_elsewhere(await table.add_worker(ttl=0.5, silent_for=1), impatient)
    await serve()
    row = await table.ended(impatient)
    assert (row["state"], row["attempt"]) == ("succeeded", 1)
    row = await table.job(patient)
    assert (row["state"], row["attempt"], row["run_count"]) == ("running", 0, 1)


async def test_jobs_of_a_worker_without_a_row_are_rescued(task: Task[[]], table: Table, serve: Serve) -> None:
    job_id = await enqueue(task)
    lost = await lose(table, job_id)
    await table.rows("delete from akadze.workers where id = %s", lost)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["error_names"]) == ("succeeded", 1, ["WorkerLost"])


async def test_rescue_depends_on_no_limit_no_pause_no_queue_and_no_task(
    app: Akadze, database_url: str, task: Task[[]], table: Table, serve: Serve
) -> None:
    newer = Akadze(database_url=database_url)

    async def body() -> None:
        pass

    elsewhere = newer.register(body, name="elsewhere", queue="elsewhere")
    unknown = newer.register(body, name="unknown")
    jobs = [
        await enqueue(task, limit_key="none"),
        await enqueue(task, limit_key="seldom"),
        await enqueue(elsewhere),
        await enqueue(unknown),
    ]
    await newer.aclose()
    await lose(table, *jobs)
    async with app.engine.begin() as connection:
        await set_limit(connection, "none", 0)
        await set_limit(connection, "seldom", max_starts=0, window=timedelta(hours=1))
        await pause_queue(connection, "elsewhere")
    await serve()
    for job_id in jobs:
        row = await table.in_state(job_id, "queued")
        assert (row["attempt"], row["error_names"]) == (1, ["WorkerLost"])


async def test_lost_jobs_behind_many_healthy_ones_are_rescued(task: Task[[]], table: Table, serve: Serve) -> None:
    healthy = await enqueue_many(task, [{}] * 250)
    lost = await enqueue_many(task, [{}] * 250)
    await table.start_elsewhere(await table.add_worker(ttl=3600, silent_for=0), *healthy)
    await lose(table, *lost)
    await serve(slots=50)
    await table.until("select count(*) = 250 from akadze.jobs where state = 'succeeded'")
    counts = await table.rows(
        "select state, run_count, attempt, count(*) from akadze.jobs group by 1, 2, 3 order by state"
    )
    assert [tuple(row.values()) for row in counts] == [("running", 1, 0, 250), ("succeeded", 2, 1, 250)]


async def test_a_job_is_rescued_once_by_workers_that_look_at_the_same_time(
    task: Task[[]], table: Table, serve: Serve
) -> None:
    jobs = await enqueue_many(task, [{}] * 60)
    await lose(table, *jobs)
    for _ in range(3):
        await serve(slots=10, poll_interval=0.01)
    await table.ended(*jobs)
    assert {(row["attempt"], row["run_count"], len(row["errors"])) for row in await table.jobs(*jobs)} == {(1, 2, 1)}


async def test_a_lost_unique_job_keeps_its_key(task: Task[[]], table: Table, serve: Serve) -> None:
    job_id = await enqueue(task, unique_key="one")
    await lose(table, job_id)
    await table.rows("insert into akadze.queue_pauses (queue) values ('default')")
    await serve()
    row = await table.in_state(job_id, "queued")
    assert row["unique_key"] == "one"


async def test_a_worker_whose_lease_is_over_takes_back_nothing_more(app: Akadze, task: Task[[]], table: Table) -> None:
    """It may have been frozen between the look and the deed, together with the worker that it takes for lost."""
    left = 0.0
    job_id = await enqueue(task)
    await lose(table, job_id)
    upkeep = Upkeep(app, uuid4(), ["default"], Outages(), hook_patience=10, lease_left=lambda: left)
    try:
        upkeep.tell(lost=True)
        await upkeep.step()
        assert (await table.job(job_id))["state"] == "running"
        left = 1.0
        upkeep.tell(lost=True)
        await upkeep.step()
        assert (await table.job(job_id))["attempt"] == 1
    finally:
        await upkeep._drop()
