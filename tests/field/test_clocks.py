"""Contract, sections 3, 7 and 10: schedules and jobs on workers that come and go, and on hosts with wrong clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from akadze import Akadze, EnqueueError, dev
from tests.database import create_database
from tests.families import FULL
from tests.field.faked import clock, clock_at
from tests.field.world import World
from tests.servers import skip_without_programs
from tests.waiting import PATIENCE, wait_until

SECOND = timedelta(seconds=1)

TICK = """
app.grace = timedelta(seconds={grace})

@app.periodic("tick", {trigger})
async def tick():
    pass
"""


def seconds_into_slot(world: World, period: int) -> float:
    """How far the database's clock is into the current slot."""
    return float(world.value("select extract(epoch from clock_timestamp())")) % period


@FULL
@pytest.mark.heavy(minutes=10)
def test_b054_no_slot_is_lost_or_doubled_while_workers_are_swapped(world: World, full: bool) -> None:
    period, swaps = (60, 10) if full else (3, 2)
    trigger = 'cron="* * * * *"' if full else f"every=timedelta(seconds={period})"
    source = TICK.format(grace=period, trigger=trigger)
    serving = [world.spawn(source), world.spawn(source)]
    world.until("select count(*) = 2 from akadze.workers")
    # The first slot that is still to come.
    first = world.value("select to_timestamp(ceil(extract(epoch from clock_timestamp()) / %s) * %s)", period, period)
    for swap in range(swaps):
        # Just before a slot one of the two goes, and a third of the slot later another comes.
        wait_until(lambda: seconds_into_slot(world, period) > period * 0.95, timeout=PATIENCE + period)
        serving.pop(0).kill()
        wait_until(lambda: period / 3 < seconds_into_slot(world, period) < period * 0.9, timeout=PATIENCE + period)
        if swap < swaps - 1:
            serving.append(world.worker(source))

    fired = [
        row["run_at"] for row in world.rows("select run_at from akadze.jobs where run_at >= %s order by id", first)
    ]
    assert len(fired) >= swaps
    assert fired == [first + number * timedelta(seconds=period) for number in range(len(fired))]


@FULL
@pytest.mark.heavy(minutes=3)
def test_b057_an_interval_is_not_counted_from_the_start_of_a_process(world: World, full: bool) -> None:
    period, life, many = (20, 8, 9) if full else (3, 0.6, 3)
    # A slot that falls between two processes is still one to be fired.
    source = TICK.format(grace=period if full else 600, trigger=f"every=timedelta(seconds={period})")
    slots: list[datetime] = []
    while len(slots) < many:
        worker = world.worker(source)
        if full:
            time.sleep(life)
        else:
            world.until("select count(*) > %s from akadze.jobs", len(slots))
        worker.terminate()
        assert worker.wait() == 0
        slots = [row["run_at"] for row in world.rows("select run_at from akadze.jobs order by run_at")]

    assert {slot.timestamp() % period for slot in slots} == {0}
    steps = {later - slot for slot, later in pairwise(slots)}
    # In the short form a process may take more than one slot's time to start; the latest of them is fired.
    assert steps == {period * SECOND} if full else steps and min(steps) >= period * SECOND


@FULL
@pytest.mark.heavy(minutes=1)
def test_b059_four_workers_never_have_two_jobs_of_a_schedule_without_overlap(world: World, full: bool) -> None:
    scale, length, least = (2, 60, 8) if full else (1, 5, 2)
    source = """
    scale = float(os.environ["SCALE"])
    app.grace = timedelta(seconds=scale / 2)

    @app.periodic("slow", every=timedelta(seconds=scale), overlap=False)
    async def slow():
        await asyncio.sleep(float(os.environ["SECONDS"]))
    """
    environment = {"SCALE": str(scale), "SECONDS": "5" if full else "1.2"}
    workers = [world.spawn(source, slots=4, environment=environment) for _ in range(4)]
    world.until("select count(*) = 4 from akadze.workers")
    open_jobs: list[int] = []
    end = time.monotonic() + length
    while time.monotonic() < end:
        open_jobs.append(
            world.value("select count(*) from akadze.jobs where task = 'slow' and state in ('queued', 'running')")
        )
        time.sleep(0.05)

    assert max(open_jobs) == 1
    assert world.value("select count(*) from akadze.jobs where run_count = 1") >= least
    assert (
        world.value(
            "select count(*) from akadze.jobs a join akadze.jobs b on a.id < b.id"
            " where tstzrange(a.started_at, a.finished_at) && tstzrange(b.started_at, b.finished_at)"
        )
        == 0
    )
    assert {worker.returncode for worker in workers} == {None}


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime.now()},  # noqa: DTZ005 - wrong on purpose
        {"expires_at": datetime.now()},  # noqa: DTZ005 - wrong on purpose
        {"run_at": datetime.now(UTC), "delay": SECOND},
    ],
    ids=["run_at", "expires_at", "both"],
)
def test_b063_a_time_without_a_zone_is_refused_and_the_transaction_goes_on(
    database_url: str, options: dict[str, Any]
) -> None:
    app = Akadze(database_url=database_url)
    task = app.register(lambda: None, name="any")
    with psycopg.connect(database_url) as connection:
        connection.execute("create table public.kept (id int)")
        with pytest.raises(EnqueueError):
            task.using(session=connection, **options).enqueue()
        connection.execute("insert into public.kept values (1)")
        connection.commit()
        assert connection.execute("select count(*) from public.kept").fetchone() == (1,)
        assert connection.execute("select count(*) from akadze.jobs").fetchone() == (0,)


SKEWED = """
@app.periodic("tick", every=timedelta(seconds=1))
async def tick():
    pass

@app.task("clock")
async def clock():
    return datetime.now(UTC)

@app.task("quick")
async def quick():
    with logged():
        pass

@app.task("long")
async def long():
    with logged():
        await asyncio.sleep(float(os.environ["LONG"]))

@app.task("broken", max_attempts=1)
async def broken():
    raise ValueError("no")

@app.task("again")
async def again():
    with logged():
        if current().job.run_count == 1:
            raise Snooze(timedelta(seconds=1))
"""


@FULL
@pytest.mark.heavy
def test_b064_workers_with_wrong_clocks_keep_the_time_of_the_database(world: World, full: bool) -> None:
    seconds, delay = ("10", 5 * SECOND) if full else ("3", 2 * SECOND)
    minutes = {"ahead": 10, "behind": -10}
    for queue, ahead in minutes.items():
        world.spawn(
            SKEWED,
            *("--queue", "default", "--queue", queue),
            environment={**clock(timedelta(minutes=ahead)), "LONG": seconds},
            slots=4,
        )
    world.until("select count(*) = 2 from akadze.workers")
    clocks = {queue: world.enqueue("clock", queue=queue)[0] for queue in minutes}
    long = [world.enqueue("long", queue=queue)[0] for queue in minutes]
    delayed = [world.enqueue("quick", queue=queue, delay=delay)[0] for queue in minutes]
    expiring = [
        job
        for queue in minutes
        for job in world.enqueue("quick", 3, queue=queue, expires_at=datetime.now(UTC) + timedelta(minutes=5))
    ]
    again = [world.enqueue("again", queue=queue)[0] for queue in minutes]
    broken = [world.enqueue("broken", queue=queue, max_attempts=1)[0] for queue in minutes]

    for job_id in (*clocks.values(), *long, *delayed, *expiring, *again):
        assert world.in_state(job_id, "succeeded", "failed", "cancelled")["state"] == "succeeded"
    for job_id in broken:
        job = world.in_state(job_id, "failed")
        [error] = job["errors"]
        assert job["started_at"] <= datetime.fromisoformat(error["at"]) <= job["finished_at"]
    for queue, job_id in clocks.items():
        shown = datetime.fromisoformat(world.job(job_id)["result"])
        assert abs(shown - datetime.now(UTC)) > timedelta(minutes=9), f"the clock of {queue} is right"
    for job_id in delayed:
        job = world.job(job_id)
        assert delay <= job["started_at"] - job["created_at"] < delay + (2 if full else 4) * SECOND
    for job_id in again:
        job = world.job(job_id)
        assert SECOND <= job["started_at"] - job["created_at"] < 6 * SECOND
    assert world.value("select max(run_count) from akadze.jobs where id <> all (%s)", again) == 1
    assert world.rows("select * from akadze.jobs where attempt > 0 and task <> 'broken'") == []
    assert world.value("select count(*) from public.runs") == len(long + delayed + expiring + again * 2)
    # Heartbeats and the slots of schedules are those of the database.
    assert world.value("select count(*) from akadze.workers where now() - heartbeat_at between '-2s' and '2s'") == 2
    assert world.value("select count(*) from akadze.jobs where task = 'tick'") >= 3
    assert world.value(
        "select bool_and(created_at - run_at between '0s' and '2s') from akadze.jobs where task = 'tick'"
    )


@pytest.fixture
def paris(tmp_path: Path) -> Iterator[World]:
    """A server that starts three seconds before the clocks of Paris go back, and a world on it."""
    skip_without_programs()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock_at(datetime(2026, 10, 25, 0, 59, 57, tzinfo=UTC)).items():
            patch.setenv(name, value)
        server = dev.start(tcp=True, settings={"timezone": "Europe/Paris"})
    with server:
        world = World(tmp_path, create_database(server.url(), "akadze_field_test"))
        yield world
        world.end()


@FULL
def test_b041_a_worker_serves_on_through_the_hour_in_which_the_clocks_go_back(paris: World) -> None:
    source = """
    for name, cron in (("often", "*/5 * * * *"), ("first pass", "0 2 * * *"), ("both passes", "0 * * * *")):
        app.register(lambda: None, name=name)
        app.add_schedule(name, cron=cron, timezone="Europe/Paris")
    """
    process = paris.worker(source, environment={"TZ": "Europe/Paris", "PGTZ": "Europe/Paris"})
    back = datetime(2026, 10, 25, 1, tzinfo=UTC)  # 03:00, which is 02:00 again

    paris.until("select count(*) = 2 from akadze.jobs where run_at = %s and state = 'succeeded'", back)

    tasks = paris.rows("select task from akadze.jobs where run_at = %s order by task", back)
    assert [row["task"] for row in tasks] == ["both passes", "often"]
    assert timedelta(0) <= paris.value("select max(started_at) from akadze.jobs") - back < timedelta(seconds=30)
    [later] = paris.enqueue("often", delay=SECOND)
    job = paris.in_state(later, "succeeded")
    assert SECOND <= job["started_at"] - job["created_at"] < 10 * SECOND
    process.terminate()
    assert process.wait() == 0


LEAPING = """
@app.periodic("tick", every=timedelta(seconds=1))
async def tick():
    pass

@app.task("quick")
async def quick():
    pass

@app.task("gated", max_attempts=3)
async def gated():
    with logged():
        while not Path("release").exists():
            await asyncio.sleep(0.02)
"""


@pytest.fixture
def leaping(tmp_path: Path) -> Iterator[tuple[World, Callable[[timedelta], None]]]:
    """A world on a server whose clock a test may set."""
    ahead = tmp_path / "ahead"

    def leap(by: timedelta) -> None:
        # As one step: a server that finds the file empty would have the right time for a moment.
        (tmp_path / "next").write_text(f"{by.total_seconds():+f}s\n")
        (tmp_path / "next").rename(ahead)

    leap(timedelta(0))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock(timedelta(0)).items():
            patch.setenv(name, value)
        patch.delenv("FAKETIME")
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(ahead))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        server = dev.start(tcp=True)
    with server:
        world = World(tmp_path, create_database(server.url(), "akadze_field_test"))
        yield world, leap
        world.end()


def test_a_clock_of_the_database_that_leaps_forward_makes_workers_seem_dead_until_their_next_beat(
    leaping: tuple[World, Callable[[timedelta], None]],
) -> None:
    world, leap = leaping
    # The first beats seldom, so that it does not beat between the leap and the other's look.
    first = world.worker(LEAPING, heartbeat_interval=5, heartbeat_ttl=30)
    [job_id] = world.enqueue("gated", max_attempts=3)
    owner = world.in_state(job_id, "running")["worker_id"]
    second = world.worker(LEAPING, heartbeat_ttl=30)
    began = time.monotonic()

    leap(timedelta(hours=1))
    world.until("select run_count = 2 from akadze.jobs where id = %s", job_id)

    assert time.monotonic() - began < 25, "its lease may really have ended"
    job = world.job(job_id)
    assert (job["attempt"], job["error_names"]) == (1, ["WorkerLost"])
    assert job["worker_id"] != owner
    # It was alive all the time, and with its next beat it is seen to be.
    world.until("select now() - heartbeat_at < '10 s' from akadze.workers where id = %s", owner)
    (world.directory / "release").touch()
    job = world.in_state(job_id, "succeeded")
    assert (job["run_count"], job["attempt"]) == (2, 1)
    assert (first.returncode, second.returncode) == (None, None)


@FULL
def test_when_the_clock_of_the_database_is_set_back_planned_jobs_and_fired_slots_wait_for_it(
    leaping: tuple[World, Callable[[timedelta], None]],
) -> None:
    world, leap = leaping
    worker = world.worker(LEAPING)
    world.until("select count(*) >= 5 from akadze.jobs where task = 'tick'")
    [planned] = world.enqueue("quick", delay=SECOND)
    due = world.job(planned)["run_at"]
    fired = "select max(run_at) as last, count(*) as count, now() as now from akadze.jobs where task = 'tick'"
    leap(-4 * SECOND)
    [before] = world.rows(fired)
    assert before["now"] < due - 3 * SECOND

    waited = 0
    while (seen := world.rows(fired)[0])["now"] < before["last"]:
        assert seen["count"] == before["count"]
        assert world.job(planned)["state"] == "queued"
        # What is enqueued by the clock as it is now runs.
        [now] = world.enqueue("quick")
        world.in_state(now, "succeeded")
        waited += 1

    assert waited > 3
    assert world.in_state(planned, "succeeded")["started_at"] >= due
    world.until("select max(run_at) > %s from akadze.jobs where task = 'tick'", before["last"] + SECOND)
    assert world.value("select count(*) = count(distinct run_at) from akadze.jobs where task = 'tick'")
    assert worker.returncode is None
