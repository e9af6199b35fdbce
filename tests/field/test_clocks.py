"""Schedules and jobs on workers that come and go, and on hosts whose clocks are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from akadze import Akadze, AkadzeError, EnqueueError, dev
from tests.database import create_database
from tests.field.faked import clock, clock_at
from tests.field.world import World
from tests.waiting import wait_until
from tests.worker.serving import Serve
from tests.worker.table import Table

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
        wait_until(lambda: seconds_into_slot(world, period) > period * 0.95, timeout=period + 5)
        serving.pop(0).kill()
        wait_until(lambda: period / 3 < seconds_into_slot(world, period) < period * 0.9, timeout=period + 5)
        if swap < swaps - 1:
            serving.append(world.worker(source))

    fired = [
        row["run_at"] for row in world.rows("select run_at from akadze.jobs where run_at >= %s order by id", first)
    ]
    assert len(fired) >= swaps
    assert fired == [first + number * timedelta(seconds=period) for number in range(len(fired))]


@pytest.mark.heavy(minutes=3)
async def test_b057_an_interval_is_not_counted_from_the_start_of_a_process(
    app: Akadze, serve: Serve, table: Table, full: bool
) -> None:
    scale = 20 if full else 1
    end = datetime.now(UTC) + timedelta(seconds=(9 if full else 4) * scale)
    lives = 0
    while datetime.now(UTC) < end:
        newborn = Akadze(engine=app.engine, grace=timedelta(seconds=scale / 2))
        newborn.register(lambda: None, name="tick")
        newborn.add_schedule("tick", every=scale * SECOND)
        served = await serve(newborn)
        await asyncio.sleep(0.4 * scale)  # the life of a worker, shorter than the interval
        await served.stop()
        lives += 1

    slots = [row["run_at"] for row in await table.rows("select run_at from akadze.jobs order by run_at")]
    assert lives > len(slots) >= (8 if full else 3)
    assert slots[0].timestamp() % scale == 0
    assert slots == [slots[0] + number * scale * SECOND for number in range(len(slots))]


@pytest.mark.heavy(minutes=1)
async def test_b059_two_workers_never_have_two_jobs_of_a_schedule_without_overlap(
    app: Akadze, serve: Serve, table: Table, full: bool
) -> None:
    scale, length, least = (2, 60, 8) if full else (1, 5, 2)
    app.grace = timedelta(seconds=scale / 2)

    @app.periodic("slow", every=scale * SECOND, overlap=False)
    async def slow() -> None:
        await asyncio.sleep(5 if full else 1.2)

    for _ in range(4):
        await serve(slots=4, poll_interval=0.2)
    open_jobs: list[int] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + length
    while loop.time() < end:
        open_jobs.append(
            await table.value("select count(*) from akadze.jobs where task = 'slow' and state in ('queued', 'running')")
        )
        await asyncio.sleep(0.05)

    assert max(open_jobs) == 1
    assert await table.value("select count(*) from akadze.jobs where run_count = 1") >= least
    assert (
        await table.value(
            "select count(*) from akadze.jobs a join akadze.jobs b on a.id < b.id"
            " where tstzrange(a.started_at, a.finished_at) && tstzrange(b.started_at, b.finished_at)"
        )
        == 0
    )


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
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock_at(datetime(2026, 10, 25, 0, 59, 57, tzinfo=UTC)).items():
            patch.setenv(name, value)
        try:
            server = dev.start(tcp=True, settings={"timezone": "Europe/Paris"})
        except AkadzeError as error:
            pytest.skip(f"the test needs a server of its own: {error}")
    with server:
        world = World(tmp_path, create_database(server.url(), "akadze_field_test"))
        yield world
        world.end()


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
