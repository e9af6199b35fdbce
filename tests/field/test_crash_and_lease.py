"""Contract, section 7: workers that die, freeze or go silent, and the jobs that they held."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from akadze import dev
from tests.database import create_database
from tests.families import FULL, few
from tests.field.world import OPTIONS, World
from tests.servers import skip_without_programs
from tests.waiting import wait_until

SLOW = """
@app.task(name="slow", max_attempts=3)
async def slow():
    with logged():
        await asyncio.sleep(600)
"""
#: The lease of the cases in less time, for the short forms.
SHORT = {"heartbeat_interval": 0.2, "heartbeat_ttl": 1}
#: For a worker of many jobs at once: each connects to the database as it starts, which holds up the loop.
MANY = {"heartbeat_interval": 0.2, "heartbeat_ttl": 5}


def test_b001_jobs_of_a_worker_whose_row_is_gone_come_back(world: World) -> None:
    first = world.worker(SLOW)
    [job_id] = world.enqueue("slow", max_attempts=3)
    dead = world.in_state(job_id, "running")["worker_id"]
    first.kill()
    world.rows("delete from akadze.workers where id = %s", dead)
    world.worker(SLOW)

    world.until("select run_count = 2 from akadze.jobs where id = %s", job_id, timeout=OPTIONS["heartbeat_ttl"] + 5)

    job = world.job(job_id)
    assert (job["state"], job["attempt"]) == ("running", 1)
    assert world.value(
        "select bool_and(worker_id in (select id from akadze.workers)) from akadze.jobs where state = 'running'"
    )


@FULL
@pytest.mark.heavy
def test_b003_long_jobs_of_a_healthy_worker_are_left_to_it(world: World, full: bool) -> None:
    source = """
    @app.task(name="long")
    async def long():
        with logged():
            while not Path("release").exists():
                await asyncio.sleep(0.02)

    @app.task(name="blocking")
    def blocking():
        with logged():
            while not Path("release").exists():
                time.sleep(0.02)
    """
    options = {**(OPTIONS if full else SHORT), "slots": 4}
    first = world.worker(source, **options)
    jobs = world.enqueue("long", 2) + world.enqueue("blocking", 2)
    world.until("select count(*) = 4 from public.runs")
    second = world.worker(source, **options)
    began = world.value("select now()")

    # Leases pass, in which the other one has free slots and looks for lost jobs.
    world.until("select now() - %s > make_interval(secs => %s)", began, 15 if full else 2.5)
    (world.directory / "release").touch()
    world.until("select count(*) = 4 from akadze.jobs where finished_at is not null")

    assert [row["pid"] for row in world.rows("select pid from public.runs")] == [first.pid] * 4
    assert {(row["state"], row["run_count"], row["attempt"]) for row in map(world.job, jobs)} == {("succeeded", 1, 0)}
    assert (first.returncode, second.returncode) == (None, None)


@pytest.mark.heavy
def test_b004_a_worker_that_drains_keeps_its_lease(world: World, full: bool) -> None:
    source = """
    @app.task(name="long")
    async def long():
        with logged():
            while not Path("release").exists():
                await asyncio.sleep(0.02)
    """
    options = {**(OPTIONS if full else SHORT), "shutdown_timeout": 30}
    first = world.worker(source, **options)
    [job_id] = world.enqueue("long")
    owner = world.in_state(job_id, "running")["worker_id"]
    second = world.worker(source, **options)
    first.terminate()
    stopped = world.value("select now()")

    # Three leases pass, in which the other one looks for lost jobs.
    world.until("select now() - %s > make_interval(secs => %s)", stopped, 3 * options["heartbeat_ttl"])
    assert world.value("select now() - heartbeat_at < heartbeat_ttl from akadze.workers where id = %s", owner)
    assert first.returncode is None
    (world.directory / "release").touch()

    assert first.wait() == 0
    job = world.job(job_id)
    assert (job["state"], job["run_count"], job["attempt"]) == ("succeeded", 1, 0)
    assert [row["pid"] for row in world.rows("select pid from public.runs")] == [first.pid]
    assert second.returncode is None


@FULL
@pytest.mark.heavy
def test_b006_a_late_failure_of_an_earlier_attempt_leaves_a_failed_job_alone(world: World, full: bool) -> None:
    source = """
    import akadze.sync

    @app.task(name="gated", max_attempts=2, backoff=AT_ONCE)
    async def gated():
        with logged():
            while not Path("gate").exists():
                await asyncio.sleep(0.01)
            raise ValueError(f"run {current().job.run_count}")


    @app.task(name="blocking", max_attempts=2, backoff=AT_ONCE)
    def blocking():
        with logged():
            while not Path("gate").exists():
                time.sleep(0.01)
            raise ValueError(f"run {akadze.sync.current().job.run_count}")
    """
    first = world.worker(source, slots=2, **SHORT)
    jobs = [*world.enqueue("gated", max_attempts=2), *world.enqueue("blocking", max_attempts=2)]
    for job_id in jobs:
        world.until("select count(*) = 1 from public.runs where job_id = %s", job_id)
    os.kill(first.pid, signal.SIGSTOP)
    second = world.worker(source, slots=2, **SHORT)
    world.until("select count(*) = 2 from public.runs where pid = %s", second.pid)

    (world.directory / "gate").touch()
    for job_id in jobs:
        world.in_state(job_id, "failed")
    os.kill(first.pid, signal.SIGCONT)

    assert first.wait() != 0
    # The plain function of the first worker raised on waking; both bodies had ended before the worker did.
    world.until("select count(*) = 2 from public.runs where pid = %s and stopped is not null", first.pid)
    beat = world.value("select max(heartbeat_at) from akadze.workers")
    later = "select max(heartbeat_at) > %s + make_interval(secs => %s) from akadze.workers"
    world.until(later, beat, 30 if full else 1)
    for job_id in jobs:
        job = world.job(job_id)
        assert (job["state"], job["attempt"], job["run_count"]) == ("failed", 2, 2)
        assert job["error_names"] == ["WorkerLost", "ValueError"]
        assert job["errors"][1]["message"] == "run 2"
    assert world.value("select count(*) from public.runs") == 4


def test_b008_lost_jobs_behind_a_page_of_healthy_ones_come_back(world: World) -> None:
    world.worker(SLOW, slots=40)
    healthy = world.enqueue("slow", 40, max_attempts=3)
    world.until("select count(*) = 40 from akadze.jobs where state = 'running'")
    second = world.worker(SLOW, slots=40, **MANY)
    lost = world.enqueue("slow", 40, max_attempts=3)
    world.until("select count(*) = 80 from akadze.jobs where state = 'running'")
    second.kill()
    third = world.worker(SLOW, slots=40)

    within = MANY["heartbeat_ttl"] + 10
    world.until("select count(*) = 40 from public.runs where pid = %s", third.pid, timeout=within)

    runs = "select distinct state, run_count, attempt from akadze.jobs where id = any(%s)"
    assert [tuple(row.values()) for row in world.rows(runs, lost)] == [("running", 2, 1)]
    assert [tuple(row.values()) for row in world.rows(runs, healthy)] == [("running", 1, 0)]
    assert world.value("select count(*) = 40 from public.runs where pid = %s and job_id = any(%s)", third.pid, lost)


#: Makes each row of a rescue take its time, so that one can be met in its middle.
_SLOW_RESCUE = """
create function public.dawdle() returns trigger language plpgsql as $$
begin perform pg_sleep(0.1); return new; end $$;
create trigger dawdle before update on akadze.jobs for each row
when (old.state = 'running' and new.state = 'queued' and new.attempt > old.attempt) execute function public.dawdle();
"""


@FULL
@pytest.mark.parametrize("moment", few(["in its middle", "after its first commit"], kept=["after its first commit"]))
def test_b009_a_rescue_that_a_crash_of_the_database_breaks_off_is_done_again(
    own_world: World, own_server: dev.Server, moment: str
) -> None:
    source = """
    @app.task(name="once more", max_attempts=3)
    async def once_more():
        with logged():
            if current().job.attempt == 0:
                await asyncio.sleep(600)
    """
    world = own_world
    first = world.worker(source, slots=20, **MANY)
    jobs = world.enqueue("once more", 20, max_attempts=3)
    world.until("select count(*) = 20 from public.runs")
    dead = world.job(jobs[0])["worker_id"]
    first.kill()
    if moment == "in its middle":
        world.rows(_SLOW_RESCUE)
        begun = "select count(*) = 1 from pg_stat_activity where wait_event = 'PgSleep'"
    else:
        begun = "select count(*) > 0 from akadze.jobs where state = 'queued'"
    second = world.worker(source, slots=20, heartbeat_ttl=30)
    world.until(begun)
    own_server.restart("immediate")

    world.until("select count(*) = 20 from akadze.jobs where state = 'succeeded'")

    assert world.value("select count(*) from akadze.jobs where worker_id = %s", dead) == 0
    assert {world.job(job_id)["attempt"] for job_id in jobs} == {1}
    assert {row["count"] for row in world.rows("select count(*) from public.runs group by job_id")} == {2}
    assert second.returncode is None


@pytest.mark.heavy
def test_b011_a_worker_whose_heartbeats_fail_stops_its_jobs_within_its_lease(world: World, full: bool) -> None:
    source = """
    @app.task(name="tick")
    async def tick():
        with Path(f"ticks {current().job.run_count}").open("a", buffering=1) as ticks:
            while True:
                print(time.time(), file=ticks)
                await asyncio.sleep(0.02)
    """

    def ticks(run: int) -> list[float]:
        file = world.directory / f"ticks {run}"
        # Its last line may be half written.
        return [float(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    options = OPTIONS if full else SHORT
    first = world.worker(source, **options)
    world.enqueue("tick")
    wait_until(lambda: ticks(1))
    with world.connect() as blocker, blocker.transaction():
        blocker.execute("lock table akadze.workers in access exclusive mode")
        beat = blocker.execute("select extract(epoch from heartbeat_at) as beat from akadze.workers").fetchone()
        assert first.wait() == 1
    assert "no heartbeat of this worker succeeded" in first.stderr
    world.spawn(source, **options)
    wait_until(lambda: ticks(2))

    assert beat is not None
    assert ticks(1)[-1] - float(beat["beat"]) < options["heartbeat_ttl"] + options["heartbeat_interval"]
    assert ticks(1)[-1] < ticks(2)[0]


def test_b011_a_plain_function_goes_on_for_a_moment_only_after_its_worker_has_lost_its_lease(world: World) -> None:
    source = """
    @app.task(name="tick")
    def tick():
        with Path("ticks").open("a", buffering=1) as ticks:
            while True:
                print(time.time(), file=ticks)
                time.sleep(0.02)
    """
    worker = world.worker(source, **SHORT)
    world.enqueue("tick")
    wait_until((world.directory / "ticks").exists)
    with world.connect() as blocker, blocker.transaction():
        blocker.execute("lock table akadze.workers in access exclusive mode")
        beat = blocker.execute("select extract(epoch from heartbeat_at) as beat from akadze.workers").fetchone()
        assert worker.wait() == 1
    assert beat is not None
    # Nothing stops a thread but the end of its process, and that does not wait for a database that hangs.
    ticks = (world.directory / "ticks").read_text().splitlines()
    assert float(ticks[-1]) - float(beat["beat"]) < 1 + 3.5


@pytest.fixture
def counting_world(tmp_path: Path) -> Iterator[World]:
    """A world on a server that counts its statements."""
    skip_without_programs()
    with dev.start(tcp=True) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            known = connection.execute("select from pg_available_extensions where name = 'pg_stat_statements'")
            if not known.rowcount:
                pytest.skip("this PostgreSQL has no pg_stat_statements")
            connection.execute("alter system set shared_preload_libraries = 'pg_stat_statements'")
        server.restart()
        world = World(tmp_path, create_database(server.url(), "akadze_field_test"))
        world.rows("create extension pg_stat_statements")
        yield world
        world.end()


@FULL
def test_b012_a_job_of_a_task_that_a_worker_does_not_know_waits_for_one_that_does(
    counting_world: World, full: bool
) -> None:
    world = counting_world
    old = """
    @app.task(name="a")
    async def a():
        pass
    """
    new = f"""{old}
    @app.task(name="b")
    async def b():
        pass
    """
    # Statements that start jobs; the constant in this one is not in the text that the server keeps of it.
    claims = (
        "select coalesce(sum(calls), 0)::int from pg_stat_statements where query like '%%run_count = j.run_count +%%'"
    )
    [waiting] = world.enqueue("b")
    jobs = world.enqueue("a", 3)
    first = world.worker(old)
    world.until("select count(*) = 3 from akadze.jobs where state = 'succeeded'")
    seconds = 10 if full else 1.5
    before = world.value(claims)
    time.sleep(seconds)
    assert before > 0
    assert world.value(claims) - before <= 10 * seconds
    first.terminate()
    assert first.wait() == 0
    assert {world.job(job_id)["state"] for job_id in jobs} == {"succeeded"}
    job = world.job(waiting)
    assert (job["state"], job["attempt"], job["run_count"], job["errors"]) == ("queued", 0, 0, [])
    assert first.stderr.count("jobs of task 'b', which the app of this worker does not have") == 1

    world.worker(new)
    job = world.in_state(waiting, "succeeded")
    assert job["attempt"] == 0
