"""Contract, section 11: on_transition, for each change that a worker makes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text

import akadze.sync
from akadze import Akadze, Cancel, Fail, Snooze, current, request_cancel, requeue
from akadze.job import Job
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


def soon(attempt: int) -> timedelta:
    return timedelta(seconds=0.1)


class Watch:
    """An on_transition hook that notes what it sees, from inside and from outside of the transaction."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.moves: list[tuple[int, str, str]] = []
        self.jobs: list[Job] = []

    async def __call__(self, connection: Any, job: Job, before: str, after: str) -> None:
        statement = text("select state from akadze.jobs where id = :id")
        inside = (await connection.execute(statement, {"id": job.id})).scalar_one()
        outside = (await self._table.job(job.id))["state"]
        assert (outside, inside, job.state) == (before, after, after)
        self.moves.append((job.id, before, after))
        self.jobs.append(job)

    def of(self, job_id: int) -> list[str]:
        """Return the states that the job has gone through."""
        moves = [move for move in self.moves if move[0] == job_id]
        assert all(one[2] == two[1] for one, two in pairwise(moves))
        return [moves[0][1], *[after for _, _, after in moves]] if moves else []


@pytest.fixture
def watch(app: Akadze, table: Table) -> Watch:
    watch = Watch(table)
    app.hooks.on_transition.append(watch)
    return watch


async def _returns() -> None:
    pass


async def _raises() -> None:
    raise ValueError("each time")


async def _fails() -> None:
    raise Fail("for good")


async def _cancels() -> None:
    raise Cancel("not needed")


async def _snoozes_once() -> None:
    if current().job.snoozes == 0:
        raise Snooze(timedelta(seconds=0.1))


async def _completes() -> None:
    async with current().complete_tx():
        pass


@pytest.mark.parametrize(
    ("body", "states"),
    [
        (_returns, ["queued", "running", "succeeded"]),
        (_raises, ["queued", "running", "queued", "running", "failed"]),
        (_fails, ["queued", "running", "failed"]),
        (_cancels, ["queued", "running", "cancelled"]),
        (_snoozes_once, ["queued", "running", "queued", "running", "succeeded"]),
        (_completes, ["queued", "running", "succeeded"]),
    ],
)
async def test_on_transition_is_called_in_the_transaction_of_each_change_that_a_run_makes(
    app: Akadze, table: Table, serve: Serve, watch: Watch, body: Any, states: list[str]
) -> None:
    job_id = await enqueue(app.register(body, name="task", max_attempts=2, backoff=soon))
    served = await serve()
    row = await table.ended(job_id)
    await served.stop()
    assert watch.of(job_id) == states
    last = watch.jobs[-1]
    assert (last.attempt, last.run_count, last.errors) == (row["attempt"], row["run_count"], row["errors"])


async def test_on_transition_is_called_for_both_changes_of_a_job_that_goes_back_and_starts_in_one_transaction(
    app: Akadze, table: Table, serve: Serve
) -> None:
    seen: list[tuple[str, str, str, int, int]] = []

    def hook(connection: Any, job: Job, before: str, after: str) -> None:
        seen.append((before, after, job.state, job.run_count, job.attempt))

    app.hooks.on_transition.append(hook)
    job_id = await enqueue(app.register(_raises, name="task", max_attempts=2, backoff=at_once))
    served = await serve()
    await table.ended(job_id)
    await served.stop()
    assert seen == [
        ("queued", "running", "running", 1, 0),
        ("running", "queued", "queued", 1, 1),
        ("queued", "running", "running", 2, 1),
        ("running", "failed", "failed", 2, 2),
    ]


async def test_on_transition_sees_a_result_and_a_worker(app: Akadze, table: Table, serve: Serve, watch: Watch) -> None:
    @app.task("task")
    async def task(n: int) -> list[int]:
        return [n]

    job_id = await enqueue(task, {"n": 7}, meta={"a": "b"})
    served = await serve()
    await table.ended(job_id)
    started, ended = watch.jobs
    assert (started.worker_id, started.args, started.meta, started.result) == (served.id, {"n": 7}, {"a": "b"}, None)
    assert (ended.worker_id, ended.args, ended.meta, ended.result) == (None, {"n": 7}, {"a": "b"}, [7])


async def test_on_transition_is_called_for_a_hand_back(app: Akadze, table: Table, serve: Serve, watch: Watch) -> None:
    @app.task("task")
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    served = await serve(shutdown_timeout=0)
    await table.in_state(job_id, "running")
    await served.stop()
    assert watch.of(job_id) == ["queued", "running", "queued"]


async def test_on_transition_is_called_for_cancels_and_expiries_of_queued_jobs(
    app: Akadze, table: Table, serve: Serve, watch: Watch
) -> None:
    task = app.register(_returns, name="task")
    asked = await enqueue(task)
    late = await enqueue(task, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    async with app.engine.begin() as connection:
        await request_cancel(connection, asked)
    await serve()
    await table.ended(asked, late)
    assert watch.of(asked) == watch.of(late) == ["queued", "cancelled"]
    assert {job.id: job.expired for job in watch.jobs} == {asked: False, late: True}


async def test_on_transition_is_called_for_rescues(app: Akadze, table: Table, serve: Serve, watch: Watch) -> None:
    task = app.register(_returns, name="task", max_attempts=2)
    back, asked = await enqueue_many(task, [{}] * 2)
    last = await enqueue(task, max_attempts=1)
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), back, asked, last)
    async with app.engine.begin() as connection:
        await request_cancel(connection, asked)
    await serve()
    await table.ended(back, asked, last)
    assert watch.of(back) == ["running", "queued", "running", "succeeded"]
    assert watch.of(asked) == ["running", "cancelled"]
    assert watch.of(last) == ["running", "failed"]


async def test_on_transition_is_called_on_the_connection_of_a_blocking_complete_tx(
    app: Akadze, table: Table, serve: Serve
) -> None:
    seen: list[tuple[Any, str, str]] = []
    blocks: list[Any] = []
    app.hooks.on_transition.append(lambda connection, job, before, after: seen.append((connection, before, after)))

    @app.task("task")
    def task() -> None:
        with akadze.sync.current().complete_tx() as connection:
            blocks.append(connection)

    job_id = await enqueue(task)
    await serve()
    await table.ended(job_id)
    (_, *start), (connection, *end) = seen
    assert (start, end) == (["queued", "running"], ["running", "succeeded"])
    assert connection is blocks[0]


async def test_a_requeue_is_no_transition_of_a_worker(app: Akadze, table: Table, serve: Serve, watch: Watch) -> None:
    job_id = await enqueue(app.register(_raises, name="task", max_attempts=1))
    served = await serve()
    await table.ended(job_id)
    await served.stop()
    watch.moves.clear()
    async with app.engine.begin() as connection:
        await requeue(connection, job_id)
    assert watch.moves == []


async def test_what_hooks_write_commits_with_the_change_and_with_it_alone(
    app: Akadze, table: Table, serve: Serve
) -> None:
    await table.rows("create table public.moves (job bigint, state text)")

    async def write(connection: Any, job: Job, before: str, after: str) -> None:
        await connection.execute(
            text("insert into public.moves values (:job, :state)"), {"job": job.id, "state": after}
        )
        if job.id % 2 and after == "succeeded":
            raise ValueError("no odd ones")

    app.hooks.on_transition.append(write)
    jobs = await enqueue_many(app.register(_returns, name="task"), [{}] * 6)
    served = await serve(slots=6)
    await table.ended(*[job_id for job_id in jobs if job_id % 2 == 0])
    moves = await table.rows("select job, state from public.moves where state = 'succeeded' order by job")
    assert [row["job"] for row in moves] == [job_id for job_id in jobs if job_id % 2 == 0]
    assert served.up
