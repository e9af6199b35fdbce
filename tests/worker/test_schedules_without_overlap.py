"""Contract, section 10: schedules with overlap=False: a fire waits for the previous job of its task."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from akadze import Akadze
from akadze._worker.schedules import Schedules
from tests.worker.firing import MINUTE, NOON, SECOND, Tables, add_task, held_in_a_hook, jobs, look_at, step


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    with look_at(database_url) as tables:
        yield tables


async def test_without_overlap_a_fire_waits_for_the_previous_job_and_is_dropped_after_grace(
    app: Akadze, tables: Tables
) -> None:
    add_task(app)
    app.grace = 20 * SECOND
    app.add_schedule("report", every=MINUTE, overlap=False)
    await step(app, NOON)
    for state in ("queued", "running"):
        tables.execute("update akadze.jobs set state = %s", [state])
        for late in (0, 10, 20):
            report = await step(app, NOON + MINUTE + late * SECOND)
            assert (report.fired, report.held) == (0, 1)
            assert report.next_in <= 0.5
    report = await step(app, NOON + MINUTE + 21 * SECOND)
    assert (report.fired, report.held) == (0, 0)
    assert jobs(tables, "run_at") == [NOON]
    tables.execute("update akadze.jobs set state = 'succeeded', finished_at = now()")
    assert (await step(app, NOON + MINUTE + 22 * SECOND)).fired == 0
    assert (await step(app, NOON + 2 * MINUTE)).fired == 1
    assert jobs(tables, "run_at") == [NOON, NOON + 2 * MINUTE]


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
async def test_without_overlap_a_held_fire_comes_when_the_previous_job_has_ended(
    app: Akadze, tables: Tables, state: str
) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    worker = Schedules(app)
    await step(app, NOON, worker)
    assert (await step(app, NOON + MINUTE, worker)).held == 1
    tables.execute("update akadze.jobs set state = %s, finished_at = now()", [state])
    assert (await step(app, NOON + MINUTE + 5 * SECOND, worker)).fired == 1
    assert jobs(tables, "run_at") == [NOON, NOON + MINUTE]


async def test_without_overlap_a_job_that_is_still_open_behind_newer_ones_counts(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE)
    for slot in range(3):
        await step(app, NOON + slot * MINUTE)
    tables.execute("update akadze.jobs set state = 'succeeded', finished_at = now() where id > 1")
    app._schedules.clear()
    app.add_schedule("report", every=MINUTE, overlap=False)
    assert (await step(app, NOON + 3 * MINUTE)).held == 1


async def test_without_overlap_jobs_that_no_schedule_made_do_not_count(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    async with app.engine.begin() as connection:
        await app.tasks["report"].using(session=connection).enqueue()
    assert (await step(app, NOON)).fired == 1


async def test_two_workers_that_decide_at_once_do_not_overlap(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    async with held_in_a_hook(app, NOON):
        # The job of the first slot is not visible yet, and another worker comes to the next slot.
        report = await step(app, NOON + MINUTE)
        assert (report.fired, report.held) == (0, 1)
    report = await step(app, NOON + MINUTE)
    assert (report.fired, report.held) == (0, 1)
    assert jobs(tables, "run_at") == [NOON]


async def test_many_workers_with_clocks_apart_never_have_two_jobs_open(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.grace = 20 * SECOND
    app.add_schedule("report", every=20 * SECOND, overlap=False)
    workers = [Schedules(app) for _ in range(4)]
    chance = random.Random(7)
    for round_ in range(20):
        now = NOON + round_ * 20 * SECOND
        await asyncio.gather(*(step(app, now + chance.choice((-1, 1)) * SECOND, worker) for worker in workers))
        assert len(tables.execute("select from akadze.jobs where state in ('queued', 'running')").fetchall()) <= 1
        if chance.random() < 0.5:
            tables.execute("update akadze.jobs set state = 'succeeded', finished_at = now()")
            await step(app, now + SECOND, workers[0])
    assert len(jobs(tables, "id")) > 5


async def test_a_task_that_is_held_back_does_not_hold_up_the_others(app: Akadze, tables: Tables) -> None:
    add_task(app, "slow")
    add_task(app, "quick")
    app.add_schedule("slow", every=MINUTE, overlap=False)
    app.add_schedule("quick", every=MINUTE, overlap=False)
    await step(app, NOON)
    tables.execute("update akadze.jobs set state = 'succeeded', finished_at = now() where task = 'quick'")
    report = await step(app, NOON + MINUTE)
    assert (report.fired, report.held) == (1, 1)
    assert jobs(tables, "task", "run_at")[-1] == ("quick", NOON + MINUTE)
