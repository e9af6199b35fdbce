"""Contract, section 10: fires of schedules, driven through the nights and days that other schedulers get wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from akadze import Akadze, AkadzeError
from akadze._schedules import next_due
from akadze._worker.schedules import Schedules
from tests.families import FULL
from tests.fires import between
from tests.processes import Process
from tests.worker.firing import MINUTE, SECOND, Tables, add_task, jobs, look_at

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    with look_at(database_url) as tables:
        yield tables


def at(text: str) -> datetime:
    """The instant of a text such as 2026-10-25 00:00, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(day: str, *clocks: str) -> list[datetime]:
    return [at(f"{day} {clock}") for clock in clocks]


def add(app: Akadze, name: str, **options: Any) -> None:
    add_task(app, name)
    app.add_schedule(name, **options)


async def run(app: Akadze, start: datetime, end: datetime, *, pace: timedelta | None = None) -> None:
    """Let a worker be up from start until before end: a pass each `pace`, or one for each slot that it sleeps to."""
    schedules = Schedules(app)
    now = start
    async with app.engine.connect() as connection:
        while now < end:
            await schedules.step(connection, now=now)
            following = next_due(app._schedules, now)
            assert following is not None
            assert following > now
            now = now + pace if pace else following


async def fires(
    app: Akadze, tables: Tables, start: datetime, end: datetime, *, pace: timedelta | None = None
) -> dict[str, list[datetime]]:
    """The slots that have become jobs, by task, in the order in which their jobs were made.

    Without those from before the start, which a worker that comes up within their grace makes up for.
    """
    await run(app, start, end, pace=pace)
    found: dict[str, list[datetime]] = {name: [] for name in app.tasks}
    for task, slot in jobs(tables, "task", "run_at"):
        if slot >= start:
            found[task].append(slot.astimezone(UTC))
    return found


#: A worker that looks twice a minute, and one that sleeps from slot to slot.
paces = pytest.mark.parametrize("pace", [30 * SECOND, None], ids=["each half minute", "from slot to slot"])


@paces
async def test_b040_an_hourly_job_runs_in_both_passes_of_the_repeated_hour(
    app: Akadze, tables: Tables, pace: timedelta | None
) -> None:
    add(app, "hourly", cron="0 * * * *", timezone="America/Los_Angeles")
    start, end = at("2026-11-01 07:00"), at("2026-11-02 08:00")
    found = await fires(app, tables, start, end, pace=pace)
    assert found["hourly"] == [start + hour * HOUR for hour in range(25)]


@paces
async def test_b041_schedules_go_on_when_the_clocks_have_gone_back(
    app: Akadze, tables: Tables, pace: timedelta | None
) -> None:
    add(app, "daily", cron="20 2 * * *", timezone="Europe/Paris")
    add(app, "often", cron="*/5 * * * *", timezone="Europe/Paris")
    start = at("2026-10-25 00:00")
    found = await fires(app, tables, start, start + 3 * HOUR, pace=pace)
    assert found["daily"] == times("2026-10-25", "00:20")
    assert found["often"] == [start + number * 5 * MINUTE for number in range(36)]
    assert app._schedules[0].trigger.next_after(start + 3 * HOUR) == at("2026-10-26 01:20")


@paces
async def test_b043_a_nightly_job_runs_once_when_the_clocks_go_forward(
    app: Akadze, tables: Tables, pace: timedelta | None
) -> None:
    add(app, "nightly", cron="30 2 * * *", timezone="America/New_York")
    found = await fires(app, tables, at("2026-03-08 05:00"), at("2026-03-09 06:31"), pace=pace)
    assert found["nightly"] == [at("2026-03-08 07:30"), at("2026-03-09 06:30")]


@paces
async def test_b045_a_two_hourly_job_passes_the_end_of_summer_time(
    app: Akadze, tables: Tables, pace: timedelta | None
) -> None:
    add(app, "job", cron="0 */2 * * *", timezone="Europe/Berlin")
    start, end = at("2024-10-26 22:00"), at("2024-10-27 06:00")
    right = [start, *times("2024-10-27", "00:00", "01:00", "03:00", "05:00")]
    began = time.monotonic()
    assert between(app._schedules[0].trigger, start, end) == right
    assert time.monotonic() - began < 1
    assert (await fires(app, tables, start, end, pace=pace))["job"] == right


async def test_b047_a_weekday_job_comes_on_monday_after_a_day_of_23_hours(app: Akadze, tables: Tables) -> None:
    add(app, "job", cron="0 0 * * 1-5", timezone="America/Chicago")
    after = at("2021-03-12 06:00")  # a slot itself: Friday 00:00
    assert app._schedules[0].trigger.next_after(after) == at("2021-03-15 05:00")
    found = await fires(app, tables, after + SECOND, at("2021-03-16 05:00"), pace=MINUTE)
    assert found["job"] == [at("2021-03-15 05:00")]


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "60 * * * *",
        "* * * *",
        "* * * * * *",
        "*/0 * * * *",
        "1,,2 * * * *",
        "",
        "@every 5m",
    ],
)
def test_b049_an_expression_that_can_never_fire_is_refused_at_once(expression: str) -> None:
    app = Akadze(database_url="postgresql://localhost/unused")
    app.register(lambda: None, name="known")
    began = time.monotonic()
    with pytest.raises(AkadzeError):
        app.periodic("x", cron=expression)
    with pytest.raises(AkadzeError):
        app.add_schedule("known", cron=expression)
    assert time.monotonic() - began < 2, "two refusals, each in less than a second"
    assert app._schedules == []
    assert list(app.tasks) == ["known"]


async def test_b050_with_both_day_fields_set_either_is_enough(app: Akadze, tables: Tables) -> None:
    add(app, "never 31", cron="48 14 31 6 0")
    add(app, "both", cron="0 12 1,15 * 5", timezone="UTC")
    found = await fires(app, tables, at("2026-06-01 00:00"), at("2026-07-01 00:00"))
    assert found["never 31"] == [at(f"2026-06-{day:02} 14:48") for day in (7, 14, 21, 28)]
    assert found["both"] == [at(f"2026-06-{day:02} 12:00") for day in (1, 5, 12, 15, 19, 26)]


async def test_b052_a_step_from_the_last_value_of_a_field_is_that_value_alone(app: Akadze, tables: Tables) -> None:
    add(app, "minute", cron="59/15 * * * *")
    add(app, "hour", cron="0 23/6 * * *")
    add(app, "weekday", cron="0 0 * * 6/2")
    start = at("2026-06-01 00:00")  # a Monday
    found = await fires(app, tables, start, start + 7 * DAY)
    assert found["minute"] == [start + hour * HOUR + 59 * MINUTE for hour in range(7 * 24)]
    assert found["hour"] == [start + day * DAY + 23 * HOUR for day in range(7)]
    assert found["weekday"] == [at("2026-06-06 00:00")]


async def test_b053_sunday_is_0_and_7_and_sun(app: Akadze, tables: Tables) -> None:
    add(app, "seven", cron="0 6 * * 7")
    add(app, "range", cron="0 6 * * 5-7")
    add(app, "name", cron="0 6 * * sun")
    found = await fires(app, tables, at("2026-06-01 00:00"), at("2026-06-08 00:00"))
    assert found["seven"] == found["name"] == times("2026-06-07", "06:00")
    assert found["range"] == [at(f"2026-06-{day:02} 06:00") for day in (5, 6, 7)]


async def test_b056_missed_slots_are_not_made_up_for_after_downtime(app: Akadze, tables: Tables) -> None:
    add(app, "every", every=MINUTE)
    add(app, "cron", cron="* * * * *")
    down, up = at("2026-06-01 10:00"), at("2026-06-01 12:00:30")
    before = await fires(app, tables, down - 3 * MINUTE, down, pace=10 * SECOND)
    assert len(before["every"]) == len(before["cron"]) == 3
    tables.execute("delete from akadze.jobs")

    await run(app, up, up + 20 * SECOND, pace=SECOND)

    noon = at("2026-06-01 12:00")
    assert sorted(jobs(tables, "task", "run_at")) == [("cron", noon), ("every", noon)]


_DAY_IN_TOKYO = """
import asyncio, os, sys, time
from datetime import UTC, datetime, timedelta
from akadze import Akadze
from akadze._worker.schedules import Schedules

async def main():
    app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
    app.register(lambda: None, name="noon")
    app.add_schedule("noon", cron="0 12 * * *")
    schedules = Schedules(app)
    start = datetime(2026, 6, 1, tzinfo=UTC)
    async with app.engine.connect() as connection:
        for minute in range(24 * 60):
            await schedules.step(connection, now=start + timedelta(minutes=minute))
    await app.aclose()
    print("local time is", time.tzname[0])

asyncio.run(main())
"""


@FULL
def test_b061_a_cron_without_a_zone_is_in_utc_wherever_the_worker_is(
    tables: Tables, tmp_path: Path, database_url: str
) -> None:
    process = Process(
        ["-c", _DAY_IN_TOKYO],
        directory=tmp_path,
        name="tokyo",
        environment={"TZ": "Asia/Tokyo", "PGTZ": "Asia/Tokyo", "AKADZE_DATABASE_URL": database_url},
        program=Path(sys.executable),
    )
    try:
        assert process.wait() == 0
    finally:
        process.end()
    assert process.stdout == "local time is JST\n"
    assert jobs(tables, "run_at") == times("2026-06-01", "12:00")


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "0 12 * * *", "timezone": "Mars/Olympus"},
        {"cron": "0 12 * * *", "timezone": ""},
        {"cron": "0 12 * * *", "timezone": "+03:00"},
        {"every": HOUR, "timezone": "Europe/Paris"},
        {"every": HOUR, "timezone": ""},
    ],
)
def test_b061_a_zone_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    app = Akadze(database_url="postgresql://localhost/unused")
    app.register(lambda: None, name="known")
    with pytest.raises(AkadzeError, match="timezone"):
        app.periodic("x", **options)
    with pytest.raises(AkadzeError, match="timezone"):
        app.add_schedule("known", **options)
    assert app._schedules == []
