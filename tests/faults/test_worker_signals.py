"""Contract, sections 7 and 8: worker processes that are killed, stopped and frozen, at whatever moment it is."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.families import FULL
from tests.field.world import World
from tests.processes import Process

#: Each job writes one row into public.done together with its success, and a line into the file RUNS at either end.
SOURCE = """
def line(what):
    # One write to a file that is open for appending is not mixed up with those of other processes.
    job = current().job
    with open(os.environ["RUNS"], "a") as file:
        file.write(f"{what} {os.getpid()} {job.id} {job.run_count}\\n")

@app.task("work")
async def work(seconds: float):
    line("start")
    try:
        await asyncio.sleep(seconds)
    finally:
        line("end")
    async with current().complete_tx() as connection:
        await connection.exec_driver_sql(
            f"insert into public.done values ({current().job.id}, {current().job.run_count})"
        )
"""
SHORT = {"heartbeat_interval": 0.2, "heartbeat_ttl": 2.5, "poll_interval": 0.1, "slots": 4}


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url)
    world.rows("create table public.done (job_id bigint, run integer)")
    (tmp_path / "runs").touch()
    yield world
    world.end()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # shown with a failing test
    return random.Random(seed)


def spawn(world: World, **options: object) -> Process:
    return world.spawn(SOURCE, environment={"RUNS": str(world.directory / "runs")}, **{**SHORT, **options})


def serves(world: World, process: Process) -> Process:
    """Wait until the process is a worker."""
    world.until("select count(*) = 1 from akadze.workers where pid = %s", process.pid)
    return process


def lines(world: World) -> list[tuple[str, str, str]]:
    """What happened, the process, and the job."""
    found = [line.split() for line in (world.directory / "runs").read_text().splitlines()]
    return [(what, pid, job_id) for what, pid, job_id, _ in found]


def note_the_end(world: World, process: Process) -> None:
    """Write after a process's last line that there is no more of it."""
    with (world.directory / "runs").open("a") as file:
        file.write(f"gone {process.pid} 0 0\n")


def ran_one_at_a_time(world: World) -> bool:
    open_runs: dict[str, str] = {}
    for what, pid, job_id in lines(world):
        if what == "gone":
            open_runs = {job: by for job, by in open_runs.items() if by != pid}
        elif what == "end":
            assert open_runs.pop(job_id) == pid
        elif open_runs.setdefault(job_id, pid) != pid:
            return False
    return True


def rounds(
    world: World,
    count: int,
    chance: random.Random,
    strike: Callable[[Process], bool],
    *,
    longest: float,
    **options: int,
) -> None:
    """Do it to one of two workers at a random moment, so many times; what it ends is replaced. Until all is done."""
    processes = [spawn(world, **options) for _ in range(2)]
    jobs: list[int] = []
    for number in range(count):
        jobs += world.enqueue("work", 20, args={"seconds": 0.02}, max_attempts=1000)
        jobs += world.enqueue("work", 2, args={"seconds": 0.4}, max_attempts=1000)
        process = serves(world, processes[number % 2])
        time.sleep(chance.uniform(0, longest))
        if strike(process):
            note_the_end(world, process)
            processes[number % 2] = spawn(world, **options)
    world.until("select bool_and(state = 'succeeded') from akadze.jobs")
    assert world.counts() == {"succeeded": len(jobs)}
    done = Counter(row["job_id"] for row in world.rows("select job_id from public.done"))
    assert done == dict.fromkeys(jobs, 1)
    # It was the last run that wrote it.
    assert world.value(
        "select count(*) from public.done d join akadze.jobs j on (j.id, j.run_count) = (d.job_id, d.run)"
    ) == len(jobs)
    for process in processes:
        serves(world, process).terminate()
    assert [process.wait() for process in processes] == [0, 0]
    assert world.value("select count(*) from akadze.jobs where state = 'running'") == 0


@pytest.mark.heavy(minutes=2)
def test_workers_that_are_killed_at_random_moments_lose_nothing(
    world: World, chance: random.Random, full: bool
) -> None:
    def kill(process: Process) -> bool:
        process.kill()
        process.wait()
        return True

    rounds(world, 100 if full else 2, chance, kill, longest=0.3)
    assert ran_one_at_a_time(world)
    # Each run but the last was lost with its worker, and cost one attempt.
    assert (
        world.value(
            "select count(*) from akadze.jobs"
            " where attempt <> run_count - 1 or jsonb_array_length(errors) <> least(attempt, 10)"
        )
        == 0
    )
    names = world.rows("select distinct e ->> 'error' as name from akadze.jobs, jsonb_array_elements(errors) e")
    assert {row["name"] for row in names} <= {"WorkerLost"}


@pytest.mark.heavy(minutes=2)
def test_workers_that_are_told_to_stop_at_random_moments_lose_nothing_and_spend_nothing(
    world: World, chance: random.Random, full: bool
) -> None:
    def terminate(process: Process) -> bool:
        if chance.random() < 0.5:
            process.terminate()
        else:
            process.interrupt()
        if chance.random() < 0.3:
            process.terminate()
        assert process.wait() == 0
        assert world.value("select count(*) from akadze.workers where pid = %s", process.pid) == 0
        return True

    rounds(world, 100 if full else 2, chance, terminate, longest=0.3, shutdown_timeout=0, heartbeat_ttl=10)
    assert ran_one_at_a_time(world)
    assert world.value("select count(*) from akadze.jobs where attempt > 0 or errors <> '[]'") == 0


@pytest.mark.heavy(minutes=3)
def test_workers_that_freeze_for_a_random_time_lose_nothing_and_finish_no_job_of_others(
    world: World, chance: random.Random, full: bool
) -> None:
    past = False

    def freeze(process: Process) -> bool:
        nonlocal past
        past = not past
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(SHORT["heartbeat_ttl"] + chance.uniform(0.2, 0.6) if past else chance.uniform(0, 0.2))
        os.kill(process.pid, signal.SIGCONT)
        if past:
            assert process.wait() != 0
            assert "no heartbeat of this worker succeeded within 2.5 s" in process.stderr
        return past

    rounds(world, 60 if full else 2, chance, freeze, longest=0.3)


def test_a_freeze_that_is_shorter_than_the_lease_changes_nothing(world: World) -> None:
    worker, second = [spawn(world, heartbeat_ttl=6) for _ in range(2)]
    serves(world, worker), serves(world, second)
    jobs = world.enqueue("work", 8, args={"seconds": 1})
    world.until("select count(*) = 8 from akadze.jobs where state = 'running'")
    for _ in range(3):
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.05)
    world.until("select count(*) = 8 from akadze.jobs where state = 'succeeded'")
    assert {(row["run_count"], row["attempt"]) for row in map(world.job, jobs)} == {(1, 0)}
    assert (worker.returncode, second.returncode) == (None, None)


POISON = """
@app.task("poison", max_attempts=2)
async def poison():
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where there is not memory enough for the result

@app.task("quick", max_attempts=100)
async def quick():
    await asyncio.sleep(0.01)
"""


@FULL
def test_a_body_that_kills_its_worker_each_time_fails_and_no_other_job_with_it(world: World) -> None:
    jobs = world.enqueue("quick", 50)
    [poison] = world.enqueue("poison", max_attempts=2)
    jobs += world.enqueue("quick", 50)
    supervisor = world.spawn(POISON, **SHORT, processes=2)
    job = world.in_state(poison, "failed")
    assert (job["attempt"], job["run_count"], job["error_names"]) == (2, 2, ["WorkerLost", "WorkerLost"])
    world.until("select count(*) = 100 from akadze.jobs where state = 'succeeded'")
    assert {world.job(job_id)["state"] for job_id in jobs} == {"succeeded"}
    assert supervisor.stderr.count("signal 9 and is replaced") == 2
    supervisor.terminate()
    assert supervisor.wait() == 0
