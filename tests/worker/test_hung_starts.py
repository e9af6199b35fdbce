"""Contract, section 11: a start whose on_transition hook hangs is put off, and keeps no other job waiting."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, Retry, Snooze
from akadze.job import Job
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


async def _body(n: int) -> None:
    pass


async def _retry() -> None:
    raise Retry(delay=timedelta(0))


async def _snooze() -> None:
    raise Snooze(timedelta(0))


async def _raise_error() -> None:
    raise ValueError("each time")


async def test_a_start_whose_hook_hung_is_tried_again_when_its_time_is_over(
    app: Akadze, table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.hooked._PUT_OFF_FOR", 2.0)
    called: list[float] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "running":
            called.append(time.monotonic())
            if len(called) == 1:
                await asyncio.sleep(600)

    app.hooks.on_transition.append(hook)
    job_id = await enqueue(app.register(_body, name="task", max_attempts=1), {"n": 1})
    await serve(heartbeat_ttl=1.5)
    await table.until("select run_at > created_at + interval '1 second' from akadze.jobs")
    # The time of the hang and one pause: a second one would outlast this test.
    monkeypatch.setattr("akadze._worker.hooked._PUT_OFF_FOR", 600.0)
    await table.ended(job_id)
    [first, second] = called
    assert second - first > 2.4


async def test_a_start_whose_hook_hangs_is_put_off_for_a_minute_and_the_others_go_on(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    async def watch(connection: Any, job: Job, before: str, after: str) -> None:
        called.append(job.args["n"])
        if after == "running" and job.args["n"] in {1, 2}:
            await (asyncio.sleep(600) if job.args["n"] == 1 else connection.execute(text("select pg_sleep(600)")))

    app.hooks.on_transition.append(watch)
    task = app.register(_body, name="task", max_attempts=1)
    jobs = await enqueue_many(task, [{"n": n} for n in range(4)])
    served = await serve(slots=4, heartbeat_ttl=3)
    await table.ended(jobs[0], jobs[3])
    put_off = await table.value(
        "select count(*) from akadze.jobs where state = 'queued' and run_at > now() + interval '45 seconds'"
    )
    assert put_off == 2
    later = await enqueue_many(task, [{"n": n} for n in range(4, 8)])
    await table.ended(*later)
    assert [called.count(n) for n in (1, 2)] == [1, 1]
    said = f"the hook {watch.__qualname__} took longer than 1 s, so the job does not start for 60 s"
    for job_id in jobs[1:3]:
        [line] = [line for line in caplog.messages if f"job {job_id}" in line]
        assert said in line
        assert "in watch\n" in line, "it tells where the hook hung"
    assert served.up


async def test_a_hook_that_swallows_its_cancellation_has_hung_all_the_same(
    app: Akadze, table: Table, serve: Serve
) -> None:
    called: list[int] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        called.append(job.args["n"])
        if after == "running" and job.args["n"] in {0, 1}:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    app.hooks.on_transition.append(hook)
    task = app.register(_body, name="task", max_attempts=1)
    jobs = await enqueue_many(task, [{"n": n} for n in range(3)])
    await serve(slots=3, heartbeat_ttl=4.5)
    await table.ended(jobs[2])
    rows = await table.jobs(*jobs[:2])
    assert [(row["state"], row["run_count"]) for row in rows] == [("queued", 0)] * 2
    assert [called.count(n) for n in (0, 1)] == [1, 1]


@pytest.mark.parametrize(("body", "attempt"), [(_retry, 1), (_snooze, 0), (_raise_error, 1)])
async def test_a_run_ends_though_the_hook_of_the_next_start_hangs(
    app: Akadze, table: Table, serve: Serve, body: Any, attempt: int
) -> None:
    hung: list[int] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "running" and job.run_count == 2:
            hung.append(job.id)
            await asyncio.sleep(600)

    app.hooks.on_transition.append(hook)
    job_id = await enqueue(app.register(body, name="task", max_attempts=5, backoff=lambda number: timedelta(0)))
    served = await serve(heartbeat_ttl=1.5)
    # The exchange that writes the end of the first run claims the second.
    await table.until("select run_at > created_at + interval '45 seconds' from akadze.jobs")
    row = await table.job(job_id)
    assert (row["state"], row["run_count"], row["attempt"]) == ("queued", 1, attempt)
    assert hung == [job_id]
    await served.stop()
    assert await table.job(job_id) == row
