"""Contract, section 9: limits as seen from outside, with workers that run jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from akadze import Akadze, clear_limit, current, list_limits, set_limit
from tests.claims.clients import Client
from tests.claims.fixtures import Connect
from tests.claims.line import Line
from tests.claims.run_log import RunLog
from tests.waiting import until
from tests.worker.serving import Serve, workers
from tests.worker.table import Table, open_table


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[Table]:
    async with open_table(database_url) as table:
        yield table


@pytest.fixture
async def serve(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    async with workers(app, table) as serve:
        yield serve


@pytest.fixture
async def log(connect: Connect) -> RunLog:
    log = RunLog(await connect())
    await log.create()
    return log


@pytest.fixture
async def caller(connect: Connect) -> Client:
    return await connect()


def register(app: Akadze, log: RunLog, *, seconds: float) -> None:
    """Register the task "work", whose runs are logged and take from half to one and a half of the seconds."""
    chance = random.Random(3)

    @app.task("work")
    async def work() -> None:
        async with log.run(current().job):
            await asyncio.sleep(seconds * chance.uniform(0.5, 1.5))


@pytest.mark.parametrize("hooks", [False, True], ids=["without hooks", "hooks"])
@pytest.mark.parametrize("fair", [False, True], ids=["by age", "fair"])
async def test_b099_no_more_runs_overlap_than_max_running(
    line: Line, app: Akadze, serve: Serve, log: RunLog, hooks: bool, fair: bool
) -> None:
    register(app, log, seconds=0.01)
    if hooks:
        app.hooks.on_transition.append(lambda *_: None)
    await line.limit("v", 2)
    await line.limit("w", 1)
    for _ in range(25):
        await line.add(key="v")
        await line.add(key="w")
        await line.add()

    for _ in range(4):
        await serve(slots=5, fair=fair)
    most = 0
    async with asyncio.timeout(30):
        while await log.count() < 75:
            most = max(most, len(await line.running("v")))

    async def done() -> bool:
        return await line.states() == {"succeeded": 75}

    await until(done)
    assert (await log.most_at_once("v"), await log.most_at_once("w")) == (2, 1)
    assert await log.most_at_once(None) > 2, "jobs without a limit are not held back"
    assert most <= 2


async def test_slots_are_those_of_each_worker_and_limits_those_of_all(
    line: Line, app: Akadze, serve: Serve, table: Table
) -> None:
    release = asyncio.Event()

    @app.task("work")
    async def work() -> None:
        await release.wait()

    await line.limit("k", 1)
    await line.add(4, key="k", after=-1)
    await line.add(4)
    for _ in range(3):
        await serve(slots=1)
    running = "select {} from akadze.jobs where state = 'running'"
    await table.until(running.format("count(*) = 3"))
    # Each of them has looked again.
    last = await table.value("select max(heartbeat_at) from akadze.workers")
    await table.until("select min(heartbeat_at) > %s from akadze.workers", last)
    assert await table.value(running.format("count(*)")) == 3
    assert await table.value(running.format("count(distinct worker_id)")) == 3
    assert await table.value(running.format("count(limit_key)")) == 1
    release.set()
    await table.until("select count(*) = 8 from akadze.jobs where state = 'succeeded'")


async def test_b103_no_more_runs_start_in_a_window_than_max_starts(
    line: Line, app: Akadze, serve: Serve, log: RunLog
) -> None:
    register(app, log, seconds=0.005)
    await line.limit("r", max_starts=3, window=0.5)
    await line.add(10, key="r")
    free = await line.add(10)

    await serve(slots=20)
    await serve(slots=20)

    async def done() -> bool:
        return await line.states() == {"succeeded": 20}

    await until(done)
    assert await log.most_starts("r", window=0.5) == 3
    first = await line.client.value("select min(started_at) from akadze.jobs")
    last_free = await line.client.value("select max(started_at) from akadze.jobs where id = any(%s)", [free])
    last = await line.client.value("select max(started_at) from akadze.jobs where limit_key = 'r'")
    assert last_free < last
    assert last - first >= timedelta(seconds=1.5), "ten starts take four windows"


async def test_b109_limits_change_while_jobs_wait_and_run(
    line: Line, app: Akadze, serve: Serve, log: RunLog, caller: Client
) -> None:
    register(app, log, seconds=0.02)
    await line.add(100, key="k")
    await serve(slots=10)
    #: When at most one was allowed.
    narrow: list[tuple[datetime, datetime]] = []

    async def now() -> datetime:
        found: datetime = await caller.value("select clock_timestamp()")
        return found

    async def runs(more: int) -> None:
        """Let so many more runs end."""
        wanted = min(await log.count() + more, 100)

        async def enough() -> bool:
            return await log.count() >= wanted

        await until(enough)

    while await log.count() < 100:
        await set_limit(caller.raw, "k", max_running=1)
        began = await now()
        await runs(4)
        narrow.append((began, await now()))
        await set_limit(caller.raw, "k", max_running=5)
        await runs(10)
        await set_limit(caller.raw, "k", max_starts=10, window=timedelta(seconds=0.2))
        (limit,) = await list_limits(caller.raw)
        assert (limit.max_running, limit.max_starts) == (5, 10)
        await runs(10)
        await clear_limit(caller.raw, "k")
        await runs(8)

    async def done() -> bool:
        return await line.states() == {"succeeded": 100}

    await until(done)
    assert await line.client.value("select max(run_count) from akadze.jobs") == 1
    assert await line.client.value("select count(*) from akadze.jobs where errors <> '[]'") == 0
    for after, before in narrow:
        assert await log.overlapping_starts("k", after, before) == 0
    began, ended = narrow[0][1], narrow[1][0]
    assert await log.overlapping_starts("k", began, ended) > 0, "with a wider limit they run side by side"
