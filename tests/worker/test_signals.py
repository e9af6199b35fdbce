"""Contract, section 8: worker processes and the signals that they get."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from akadze.sync import migrate
from tests.processes import Process, Starter
from tests.waiting import PATIENCE, wait_until

SOURCE = """
import asyncio, os, threading, time
from datetime import timedelta
from pathlib import Path

import psycopg
from akadze import Akadze, current

URL = os.environ["AKADZE_DATABASE_URL"]
app = Akadze(database_url=URL)


def at_once(attempt):
    return timedelta(0)


def note(what):
    # Committed at once, whatever becomes of the run.
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute("insert into public.notes (pid, what) values (%s, %s)", [os.getpid(), what])


@app.task("quick")
async def quick():
    await asyncio.sleep(0.01)


@app.task("long", max_attempts=3)
async def long(seconds: float):
    note("start")
    await asyncio.sleep(seconds)
    note("end")


@app.task("gated", max_attempts=2, backoff=at_once)
async def gated(gate: str, how: str):
    run = current().job.run_count
    note(f"start {run}")
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    if how == "raise":
        raise ValueError(f"run {run}")
    if how == "complete":
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql(f"insert into public.notes (what) values ('done {run}')")
    return run


@app.task("sync gated", max_attempts=2, backoff=at_once)
def sync_gated(gate: str):
    note("start")
    while not Path(gate).exists():
        time.sleep(0.02)


@app.task("stubborn")
async def stubborn():
    note("start")
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass
"""

FAST = ("--heartbeat-interval", "100ms", "--heartbeat-ttl", "1500ms", "--poll-interval", "50ms")


class Rows:
    def __init__(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        self._connection = connection

    def __call__(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        rows = self(statement, *parameters)
        return next(iter(rows[0].values())) if rows else None

    def until(self, question: str, *parameters: Any, timeout: float = PATIENCE) -> None:
        wait_until(lambda: self.value(question, *parameters), timeout=timeout)

    def enqueue(self, task: str, args: str = "{}", *, count: int = 1, max_attempts: int = 3) -> list[int]:
        """Insert jobs as another program would."""
        rows = self(
            "insert into akadze.jobs (task, args, max_attempts)"
            " select %s, %s, %s from generate_series(1, %s) returning id",
            task,
            args,
            max_attempts,
            count,
        )
        return [row["id"] for row in rows]

    def job(self, job_id: int) -> dict[str, Any]:
        row = self("select * from akadze.jobs where id = %s", job_id)[0]
        return {**row, "error_names": [entry["error"] for entry in row["errors"]]}

    def starts(self, *, pid: int | None = None) -> int:
        count = self.value(
            "select count(*) from public.notes where what like 'start%%' and pid = coalesce(%s, pid)", pid
        )
        return int(count)


@pytest.fixture
def rows(database_url: str) -> Any:
    migrate(database_url)
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("create table public.notes (pid int, what text, at timestamptz default clock_timestamp())")
        yield Rows(connection)


def running(rows: Rows, process: Process, count: int = 1) -> None:
    """Wait until the process runs so many jobs."""
    rows.until(
        "select count(*) = %s from akadze.jobs j join akadze.workers w on w.id = j.worker_id"
        " where j.state = 'running' and w.pid = %s",
        count,
        process.pid,
    )


def freeze(process: Process, rows: Rows) -> None:
    """Stop the process until its lease has ended."""
    os.kill(process.pid, signal.SIGSTOP)
    rows.until(
        "select coalesce(bool_and(heartbeat_at < now() - heartbeat_ttl), true) from akadze.workers where pid = %s",
        process.pid,
    )


def test_a_worker_that_is_told_to_stop_under_load_exits_0_and_leaves_no_job_behind(
    rows: Rows, start_worker: Starter
) -> None:
    jobs = rows.enqueue("quick", count=3000)
    worker = start_worker(SOURCE, *FAST, "--slots", "20")
    rows.until("select count(*) > 100 from akadze.jobs where state = 'succeeded'")
    worker.terminate()
    assert worker.wait() == 0
    counts = {row["state"]: row["count"] for row in rows("select state, count(*) from akadze.jobs group by 1")}
    assert set(counts) <= {"queued", "succeeded"}
    assert sum(counts.values()) == len(jobs)
    assert rows.value("select count(*) from akadze.jobs where attempt > 0 or errors <> '[]'") == 0
    assert rows("select * from akadze.workers") == []


def test_a_worker_that_is_told_to_stop_lets_its_job_end_and_nobody_takes_it(rows: Rows, start_worker: Starter) -> None:
    first = start_worker(SOURCE, *FAST, "--shutdown-timeout", "30s")
    (job_id,) = rows.enqueue("long", '{"seconds": 2}')
    running(rows, first)
    second = start_worker(SOURCE, *FAST)
    rows.until("select count(*) = 2 from akadze.workers")
    first.terminate()
    assert first.wait() == 0
    row = rows.job(job_id)
    assert (row["state"], row["run_count"], row["attempt"]) == ("succeeded", 1, 0)
    assert rows.starts(pid=first.pid) == 1
    assert rows.starts(pid=second.pid) == 0


def test_jobs_that_do_not_end_within_the_shutdown_timeout_go_back(rows: Rows, start_worker: Starter) -> None:
    worker = start_worker(SOURCE, *FAST, "--slots", "3", "--shutdown-timeout", "200ms")
    jobs = [
        *rows.enqueue("long", '{"seconds": 600}'),
        *rows.enqueue("sync gated", '{"gate": "/nonexistent/gate"}'),
        *rows.enqueue("stubborn"),
    ]
    rows.until("select count(*) = 3 from public.notes")
    worker.terminate()
    assert worker.wait() == 0
    for row in map(rows.job, jobs):
        assert (row["state"], row["attempt"], row["run_count"], row["errors"]) == ("queued", 0, 1, [])
    assert f"job {jobs[2]} of task stubborn does not stop" in worker.stderr
    assert "Traceback" not in worker.stderr


def test_a_second_signal_hands_back_at_once(rows: Rows, start_worker: Starter) -> None:
    worker = start_worker(SOURCE, *FAST, "--shutdown-timeout", "1h")
    (job_id,) = rows.enqueue("long", '{"seconds": 600}')
    running(rows, worker)
    worker.interrupt()
    worker.wait_for_output("stops")
    assert worker.returncode is None
    worker.interrupt()
    assert worker.wait() == 0
    row = rows.job(job_id)
    assert (row["state"], row["attempt"]) == ("queued", 0)


def test_a_job_that_was_asked_to_cancel_is_cancelled_when_its_worker_is_told_to_stop(
    rows: Rows, start_worker: Starter
) -> None:
    worker = start_worker(SOURCE, *FAST, "--shutdown-timeout", "100ms")
    (job_id,) = rows.enqueue("long", '{"seconds": 600}')
    running(rows, worker)
    rows("update akadze.jobs set cancel_requested_at = now()")
    worker.terminate()
    assert worker.wait() == 0
    row = rows.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("cancelled", 0, 1)


def test_jobs_of_a_killed_worker_are_finished_by_another(rows: Rows, start_worker: Starter) -> None:
    jobs = rows.enqueue("long", '{"seconds": 600}', count=4)
    last = rows.enqueue("long", '{"seconds": 600}', max_attempts=1)
    first = start_worker(SOURCE, *FAST, "--slots", "5")
    running(rows, first, 5)
    lost = rows.value("select id from akadze.workers")
    first.kill()
    first.wait()
    rows("update akadze.jobs set args = '{\"seconds\": 0}'")
    start_worker(SOURCE, *FAST, "--slots", "5")
    rows.until("select count(*) = 5 from akadze.jobs where state in ('succeeded', 'failed')")
    for row in map(rows.job, jobs):
        assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 1, 2)
        assert row["error_names"] == ["WorkerLost"]
        assert str(lost) in row["errors"][0]["message"]
    row = rows.job(last[0])
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 1, 1)


def test_a_worker_that_wakes_after_its_lease_writes_nothing_and_exits_non_zero(
    rows: Rows, start_worker: Starter, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    start_worker.anew = True
    first = start_worker(SOURCE, *FAST, "--slots", "3")
    returns, raises, completes = [
        rows.enqueue("gated", json.dumps({"gate": str(gate), "how": how}), max_attempts=2)[0]
        for how in ("return", "raise", "complete")
    ]
    rows.until("select count(*) = 3 from public.notes")
    freeze(first, rows)
    second = start_worker(SOURCE, *FAST, "--slots", "3")
    rows.until("select count(*) = 6 from public.notes")
    gate.touch()
    rows.until("select count(*) = 3 from akadze.jobs where state in ('succeeded', 'failed')")
    ended = [rows.job(job_id) for job_id in (returns, raises, completes)]
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() != 0
    assert "no heartbeat of this worker succeeded within 1.5 s" in first.stderr
    assert "Traceback" not in first.stderr
    assert [(row["state"], row["attempt"], row["run_count"]) for row in ended] == [
        ("succeeded", 1, 2),
        ("failed", 2, 2),
        ("succeeded", 1, 2),
    ]
    assert [rows.job(job_id) for job_id in (returns, raises, completes)] == ended
    assert [row["what"] for row in rows("select what from public.notes where what like 'done%%'")] == ["done 2"]
    assert rows.value("select count(*) from public.notes where what like 'start%%'") == 6
    assert second.returncode is None


def test_a_worker_that_wakes_after_its_lease_while_nobody_took_its_job_hands_it_back(
    rows: Rows, start_worker: Starter
) -> None:
    start_worker.anew = True
    worker = start_worker(SOURCE, *FAST)
    (job_id,) = rows.enqueue("long", '{"seconds": 600}')
    running(rows, worker)
    freeze(worker, rows)
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.wait() != 0
    row = rows.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("queued", 0, 1)


def test_a_worker_that_the_database_stops_for_good_exits_non_zero_with_the_cause(
    rows: Rows, start_worker: Starter
) -> None:
    worker = start_worker(SOURCE, *FAST)
    rows.until("select count(*) = 1 from akadze.workers")
    rows("alter table akadze.jobs rename to jobs_gone")
    try:
        assert worker.wait() != 0
    finally:
        rows("alter table akadze.jobs_gone rename to jobs")
    assert 'relation "akadze.jobs" does not exist' in worker.stderr
