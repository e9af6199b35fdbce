"""Contract, sections 7, 8 and 14: workers that are told to stop, and workers that stop because something is wrong."""

from __future__ import annotations

import random
import signal
import time
from datetime import timedelta

import psycopg
import pytest

from akadze import Akadze
from tests.families import FULL
from tests.field.world import OPTIONS, World
from tests.processes import Process
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

IDLE = """
@app.task("idle")
async def idle():
    pass
"""

SHORT = """
import psycopg

log = psycopg.connect(os.environ["AKADZE_DATABASE_URL"], autocommit=True)

@app.task("short")
def short():
    log.execute("insert into public.runs (job_id, pid) values (%s, %s)", (akadze.sync.current().job.id, os.getpid()))
    time.sleep(0.02)

print("imported", flush=True)
"""


@pytest.fixture(autouse=True)
def _new_interpreters(world: World) -> None:
    world.start_anew()


def exit_code(process: Process, *, within: float = 30) -> int:
    """Return the exit code of a process that has told neither a traceback nor an ignored exception."""
    code = process.wait(within)
    assert "Traceback" not in process.stderr
    assert "Exception ignored" not in process.stderr
    return code


def drop_schema(world: World) -> None:
    while True:
        try:
            world.rows("drop schema akadze cascade")
            return
        except psycopg.errors.DeadlockDetected:
            pass  # with a statement of the worker


@FULL
@pytest.mark.heavy(minutes=3)
def test_b022_a_signal_in_the_middle_of_a_claim_leaves_nothing_running_and_repeats_nothing(
    world: World, full: bool
) -> None:
    jobs, rounds, at_once = (500, 100, 1) if full else (120, 2, 3)
    world.enqueue("short", jobs)

    for _ in range(rounds):
        processes = [world.spawn(SHORT, poll_interval=0.05) for _ in range(at_once)]
        for process in processes:
            process.wait_for_output("imported")
        for process in processes:
            time.sleep(random.uniform(0, 0.6) / at_once)  # the moment is what is tested; any moment will do
            process.terminate()
        for process in processes:
            assert exit_code(process) == 0
        assert world.value("select count(*) from akadze.jobs where state = 'running'") == 0
        assert world.value("select count(*) from akadze.workers") == 0

    world.worker(SHORT, poll_interval=0.05, slots=20)
    world.until("select count(*) = %s from akadze.jobs where state = 'succeeded'", jobs)
    assert world.value("select max(attempt) from akadze.jobs") == 0
    ran = world.rows("select count(*), count(distinct job_id) as jobs from public.runs")
    assert ran == [{"count": jobs, "jobs": jobs}]


@FULL
def test_b024_a_signal_while_idle_ends_with_code_0(world: World) -> None:
    process = world.worker(IDLE)
    process.terminate()
    assert exit_code(process) == 0


@FULL
def test_b024_a_lease_that_is_lost_ends_with_another_code_and_one_line(world: World) -> None:
    process = world.worker(IDLE, heartbeat_interval=0.2, heartbeat_ttl=1)
    with world.connect() as blocker, blocker.transaction():
        blocker.execute("select from akadze.workers for update")
        process.wait_for_output(" stops: ")
    assert exit_code(process) == 1
    [line] = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert "no heartbeat of this worker succeeded within 1 s" in line


@FULL
def test_b024_a_worker_that_was_frozen_past_its_lease_ends_with_another_code(world: World) -> None:
    process = world.worker(IDLE, heartbeat_interval=0.2, heartbeat_ttl=1)
    process.send(signal.SIGSTOP)
    world.until("select heartbeat_at < now() - interval '1.5 s' from akadze.workers")
    process.send(signal.SIGCONT)
    assert exit_code(process) == 1


@FULL
def test_b024_a_schema_that_is_gone_ends_with_another_code_and_one_line_that_names_it(world: World) -> None:
    process = world.worker(IDLE)
    drop_schema(world)
    assert exit_code(process) == 1
    [line] = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert "akadze." in line
    assert "does not exist" in line


@FULL
def test_b024_a_supervisor_tells_of_a_process_that_ended_badly_after_the_signal(world: World) -> None:
    process = world.worker(
        """
        @app.task("mail")
        async def mail():
            note("running")
            await asyncio.sleep(600)

        """,
        *("--processes", "2"),
        shutdown_timeout=60,
    )
    world.enqueue("mail")
    world.until("select count(*) = 1 from public.notes")
    process.terminate()
    world.until("select count(*) = 1 from akadze.workers")
    drop_schema(world)
    assert process.wait() == 1


@FULL
@pytest.mark.parametrize(("kind", "shutdown_timeout"), [("async def", 2), ("def", 0)])
def test_b025_jobs_that_were_claimed_and_not_begun_are_not_forgotten(
    world: World, kind: str, shutdown_timeout: float
) -> None:
    pause = "await asyncio.sleep(0.3)" if kind == "async def" else "time.sleep(0.3)"
    process = world.worker(
        f"""
        async def slowly(job):
            await asyncio.sleep(0.2)

        app.hooks.before_run.append(slowly)

        @app.task("task")
        {kind} task():
            {pause}
        """,
        slots=20,
        shutdown_timeout=shutdown_timeout,
    )
    worker_id = world.value("select id from akadze.workers")
    world.enqueue("task", 200)
    world.until("select count(*) > 0 from akadze.jobs where state = 'running'")
    time.sleep(0.25)  # the case's own: in the middle of the second half of a run
    process.terminate()
    assert exit_code(process) == 0

    assert world.value("select count(*) from akadze.jobs where worker_id = %s and state = 'running'", worker_id) == 0
    counts = world.counts()
    assert set(counts) <= {"queued", "succeeded"}
    assert counts["queued"] >= 160
    assert world.value("select max(attempt) from akadze.jobs") == 0
    assert world.value("select bool_and(errors = '[]') from akadze.jobs")


STUBBORN = """
from contextlib import asynccontextmanager

async def endless():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@asynccontextmanager
async def around(job):
    try:
        yield
    finally:
        if job.task == "hook":
            await endless()

app.hooks.around_run.append(around)

@app.task("body")
async def body():
    note("running")
    await endless()

@app.task("group")
async def group():
    note("running")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(endless())

@app.task("hook")
async def hook():
    note("running")
    await asyncio.sleep(600)
"""


@FULL
def test_b027_bodies_that_do_not_stop_are_named_and_hold_up_nothing(world: World) -> None:
    process = world.worker(STUBBORN, slots=3, shutdown_timeout=0.2)
    jobs = {task: world.enqueue(task)[0] for task in ("body", "group", "hook")}
    world.until("select count(*) = 3 from public.notes")
    process.terminate()
    assert exit_code(process) == 0
    for task, job_id in jobs.items():
        job = world.job(job_id)
        assert (job["state"], job["attempt"], job["worker_id"]) == ("queued", 0, None)
        assert f"job {job_id} of task {task} does not stop when it is cancelled" in process.stderr


@pytest.mark.parametrize(
    ("table_name", "column"),
    [
        ("jobs", None),
        ("jobs", "run_at"),
        ("workers", None),
        ("workers", "heartbeat_at"),
        ("queue_pauses", None),
        ("limits", None),
        ("periodic_runs", None),
    ],
)
async def test_b029_an_error_in_any_duty_of_an_idle_worker_stops_it(
    app: Akadze, table: Table, serve: Serve, table_name: str, column: str | None
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    @app.periodic(every=timedelta(seconds=1), name="tick")
    async def tick() -> None:
        pass

    before, after = (
        (f"rename to {table_name}", "rename to gone")
        if column is None
        else (f"rename column gone to {column}", f"rename column {column} to gone")
    )
    served = await serve(**OPTIONS)
    await table.rows(f"alter table akadze.{table_name} {after}")
    error = await served.failed(OPTIONS["heartbeat_ttl"] + 5)
    assert (column or f"akadze.{table_name}") in str(error)
    assert "does not exist" in str(error)

    await table.rows(f"alter table akadze.{'gone' if column is None else table_name} {before}")
    again = await serve(**OPTIONS)
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    assert again.up
