"""Contract, section 12: drain beside workers, and a drain that is broken off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from akadze import Akadze, current
from akadze.job import Job
from akadze.testing import drain
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue


@pytest.mark.parametrize("on", ["no session", "a session in autocommit"])
async def test_a_worker_does_not_take_the_jobs_of_a_drain_for_lost(
    app: Akadze, database_url: str, table: Table, serve: Serve, on: str
) -> None:
    other = Akadze(database_url=database_url)
    other.register(lambda: None, name="elsewhere", queue="elsewhere")
    sooner = timedelta(seconds=0.1)
    await serve(other, heartbeat_interval=sooner, heartbeat_ttl=2 * sooner)
    lost: list[int] = []

    @app.task("task")
    async def task() -> None:
        # A job of a worker that is dead shows when the other one has looked.
        lost.append(await enqueue(app.tasks["never"]))
        await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), *lost)
        await table.until(f"select state <> 'running' from akadze.jobs where id = {lost[0]}")

    app.register(lambda: None, name="never", max_attempts=1)
    job_id = await enqueue(task)
    if on == "no session":
        await drain(app)
    else:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as session:
            await drain(app, session=session)
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 0, 1)
    assert (await table.job(lost[0]))["error_names"] == ["WorkerLost"]
    assert await table.value("select count(*) from akadze.workers where cardinality(queues) = 0") == 0


@pytest.mark.parametrize("on", ["no session", "a session in autocommit"])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_drain_that_is_cancelled_hands_its_job_back(
    app: Akadze, database_url: str, table: Table, colour: str, on: str, caplog: pytest.LogCaptureFixture
) -> None:
    moves: list[tuple[str, str]] = []
    running, over = asyncio.Event(), threading.Event()

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        moves.append((before, after))
        if after == "running":
            running.set()

    app.hooks.on_transition.append(hook)

    async def body() -> None:
        if current().job.run_count == 1:
            await asyncio.sleep(600)

    def plain_body() -> None:
        if len(moves) == 1:
            over.wait()

    job_id = await enqueue(app.register(body if colour == "async" else plain_body, name="task"))
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as session:
        options = {} if on == "no session" else {"session": session}
        first = asyncio.create_task(drain(app, **options))
        await running.wait()
        await table.until(f"select state = 'running' from akadze.jobs where id = {job_id}")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        over.set()
        row = await table.job(job_id)
        assert (row["state"], row["attempt"], row["worker_id"]) == ("queued", 0, None)
        assert not caplog.records  # no attempt has ended
        assert await table.value("select count(*) from akadze.workers") == 0
        assert moves == [("queued", "running"), ("running", "queued")]
        await drain(app, **options)
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["errors"]) == ("succeeded", 0, [])
    await until(lambda: moves[-1] == ("running", "succeeded"))


async def test_a_drain_that_is_cancelled_at_its_end_leaves_no_worker_behind(
    app: Akadze, database_url: str, table: Table
) -> None:
    waiting = "select exists (select from pg_locks where not granted)"
    app.register(lambda: None, name="task")
    begun = asyncio.Event()
    app.hooks.on_transition.append(lambda connection, job, before, after: begun.set())
    await enqueue(app.tasks["task"])
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        draining = asyncio.create_task(drain(app))
        await begun.wait()
        await blocker.execute("lock table akadze.workers in share mode")
        await table.until(waiting)
        draining.cancel()
        await asyncio.sleep(0)
        await blocker.rollback()
        with pytest.raises(asyncio.CancelledError):
            await draining
    assert await table.value("select count(*) from akadze.workers") == 0


INTERRUPTED = """
import asyncio, os, signal, sys
from akadze import Akadze, current
from akadze.sync.testing import drain

app = Akadze(database_url=sys.argv[1])
running = []

@app.task("task")
async def task():
    assert not running
    running.append(1)
    try:
        if current().job.run_count == 1:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(600)
    finally:
        running.clear()

with app.sync_engine.begin() as connection:
    task.using(session=connection).enqueue()
try:
    drain(app)
except KeyboardInterrupt:
    print("interrupted", running)
drain(app)
"""


async def test_a_blocking_drain_that_is_interrupted_cancels_its_body_and_hands_the_job_back(
    database_url: str, table: Table
) -> None:
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", INTERRUPTED, database_url], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted []\n", "")
    assert await table.rows("select state, run_count, attempt, errors from akadze.jobs") == [
        {"state": "succeeded", "run_count": 2, "attempt": 0, "errors": []}
    ]
