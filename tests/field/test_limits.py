"""Contract, sections 7 and 9: limits and fair claims, with workers that run jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from akadze import Akadze, AkadzeError, LimitSummary, clear_limit, list_limits, set_limit
from akadze.sync import clear_limit as clear_limit_now
from akadze.sync import set_limit as set_limit_now
from tests.claims.claiming import CHOOSE_LIMITED, Claimer
from tests.claims.clients import Client
from tests.families import FULL
from tests.field.world import World
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

#: How many runs the log has, and the most of them under way at once.
MOST_LOGGED = """
select count(*) as runs, max((
  select count(*) from public.runs b where b.started <= a.started and b.stopped > a.started
)) as most
from public.runs a
"""
#: The most starts of the key within a window that ends with one of them.
MOST_STARTS = """
select max((
  select count(*) from akadze.jobs b
  where b.limit_key = a.limit_key and b.started_at <= a.started_at
    and b.started_at > a.started_at - cast(%s as interval)
))
from akadze.jobs a where a.limit_key = %s
"""
#: Starts of the key between two instants.
STARTS = "select a.id from akadze.jobs a where a.limit_key = %s and a.started_at between %s and %s"
#: Those of them at which another job of the key was running.
CROWDED_STARTS = f"""
{STARTS} and exists (
  select from akadze.jobs b
  where b.limit_key = a.limit_key and b.id <> a.id and b.started_at <= a.started_at
    and coalesce(b.finished_at, 'infinity') > a.started_at
)
"""


Raw = psycopg.AsyncConnection[Any]


@pytest.fixture
async def raw(anyio_backend: str, database_url: str) -> AsyncIterator[Raw]:
    """A connection in autocommit, not akadze's."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as raw:
        yield raw


def sleeping(app: Akadze, name: str, seconds: float) -> Any:
    """Register a task that takes so long."""

    @app.task(name)
    async def sleep() -> None:
        await asyncio.sleep(seconds)

    return sleep


async def ended(table: Table, *job_ids: int) -> bool:
    """Tell whether all these jobs have succeeded."""
    count = await table.value(
        "select count(*) from akadze.jobs where id = any (%s) and state = 'succeeded'", list(job_ids)
    )
    return bool(count == len(job_ids))


async def in_order_of_start(table: Table) -> list[int]:
    rows = await table.rows("select id from akadze.jobs where started_at is not null order by started_at, id")
    return [row["id"] for row in rows]


@FULL
@pytest.mark.heavy
async def test_b099_six_workers_together_never_run_more_than_the_limit(
    app: Akadze, table: Table, world: World, full: bool, raw: Raw
) -> None:
    count, shortest, longest = (306, 0.02, 0.06) if full else (54, 0.005, 0.02)
    source = f"""
    import random

    async def work():
        with logged():
            await asyncio.sleep(random.uniform({shortest}, {longest}))

    for queue in ("a", "b", "c"):
        app.register(work, name=queue, queue=queue)
    """

    async def work() -> None: ...

    # In three queues: of one queue, all workers that are woken at once would choose the same first jobs.
    tasks = [app.register(work, name=queue, queue=queue) for queue in ("a", "b", "c")]
    await set_limit(raw, "v", max_running=2)
    workers = [world.spawn(source, "--queue", task.queue, slots=5, poll_interval=0.05) for task in tasks * 2]
    await table.until("select count(*) = 6 from akadze.workers")
    running = []
    for _ in range(6):
        # All six sleep, and are woken at once: nobody's choice has seen the claims of the others.
        await table.until("select bool_and(sleeping) from akadze.workers")
        async with app.engine.begin() as connection:
            for task in tasks:
                await task.using(session=connection, limit_key="v").enqueue_many([{}] * (count // 18))
        async with asyncio.timeout(60):
            while await table.value("select exists (select from akadze.jobs where state <> 'succeeded')"):
                running.append(await table.value("select count(*) from akadze.jobs where state = 'running'"))

    assert max(running) == 2
    assert world.rows(MOST_LOGGED) == [{"runs": count, "most": 2}]
    assert {worker.returncode for worker in workers} == {None}


def test_b101_a_job_of_a_dead_worker_does_not_hold_up_its_own_rescue(world: World) -> None:
    with world.connect() as connection:
        set_limit_now(connection, "k", max_running=1)
    source = """
    @app.task("work")
    async def work():
        with logged():
            await asyncio.sleep({seconds})
    """
    first = world.worker(source.format(seconds=60), slots=2)
    held, waiting = world.enqueue("work", 2, limit_key="k")
    world.in_state(held, "running")
    world.until("select count(*) = 1 from public.runs")
    first.kill()

    world.worker(source.format(seconds=0.1), slots=2)

    for job_id in (held, waiting):
        assert world.in_state(job_id, "succeeded", "failed")["state"] == "succeeded"
    assert (world.job(held)["run_count"], world.job(held)["error_names"]) == (2, ["WorkerLost"])
    assert world.job(waiting)["run_count"] == 1
    runs = world.rows("select job_id, started, stopped from public.runs where stopped is not null order by started")
    assert {row["job_id"] for row in runs} == {held, waiting}
    assert runs[0]["stopped"] <= runs[1]["started"]


@pytest.mark.heavy
async def test_b103_a_batch_starts_no_more_than_the_rate_allows(
    app: Akadze, serve: Serve, table: Table, full: bool, raw: Raw
) -> None:
    window = timedelta(seconds=5 if full else 0.6)
    task = sleeping(app, "work", 0.01)
    await set_limit(raw, "r", max_starts=3, window=window)
    limited = await enqueue_many(task, [{}] * 10, limit_key="r")
    free = await enqueue_many(task, [{}] * 10)
    await serve(slots=20)

    await until(lambda: ended(table, *limited, *free))

    assert await table.value(MOST_STARTS, window, "r") == 3
    begun = await table.value("select min(started_at) from akadze.jobs")
    last_free = await table.value("select max(started_at) from akadze.jobs where limit_key is null")
    rows = await table.rows("select started_at from akadze.jobs where limit_key = 'r' order by started_at")
    fourth, last = rows[3]["started_at"], rows[-1]["started_at"]
    assert last_free < fourth, "those without a key waited for the rate of the others"
    assert 3 * window <= last - begun < 4 * window + (0 if full else 5) * SECOND


@pytest.mark.parametrize(
    "policy", [{"max_running": 1}, {"max_starts": 1, "window": HOUR}], ids=["max_running", "max_starts"]
)
async def test_b104_a_blocked_key_at_the_head_does_not_starve_the_others(
    app: Akadze, serve: Serve, table: Table, policy: dict[str, Any], raw: Raw
) -> None:
    long, short = sleeping(app, "long", 600), sleeping(app, "short", 0.01)
    await set_limit(raw, "a", **policy)
    blocked = await enqueue_many(long, [{}] * 5000, limit_key="a")
    others = await enqueue_many(short, [{}] * 10, limit_key="b")
    served = await serve(slots=4, shutdown_timeout=0)

    await until(lambda: ended(table, *others))

    rows = await table.rows("select id from akadze.jobs where limit_key = 'a' and started_at is not null")
    assert [row["id"] for row in rows] == blocked[:1]
    assert (await table.job(blocked[0]))["state"] == "running"
    await served.stop()


@pytest.mark.heavy
async def test_b106_a_busy_tenant_does_not_keep_the_others_waiting(
    app: Akadze, serve: Serve, table: Table, full: bool
) -> None:
    task = sleeping(app, "work", 0.2)
    big = await enqueue_many(task, [{}] * (20_000 if full else 1000), limit_key="big")
    for _ in range(2):
        await serve(slots=2, fair=True)
    await table.until("select count(*) = 4 from akadze.jobs where state = 'running'")
    async with app.engine.begin() as connection:
        await task.using(session=connection, limit_key="small").enqueue_many([{}] * 2)
        await task.using(session=connection).enqueue_many([{}] * 2)
    before = len(await in_order_of_start(table))
    others = [row["id"] for row in await table.rows("select id from akadze.jobs where id > %s", big[-1])]

    await until(lambda: ended(table, *others))
    urgent = await enqueue(task, limit_key="big", priority=1)
    known = await in_order_of_start(table)
    await table.until("select started_at is not null from akadze.jobs where id = %s", urgent)

    order = await in_order_of_start(table)
    last = max(order.index(job_id) for job_id in others)
    assert len(set(order[before : last + 1]) - set(others)) < 5, "the fifth next big job came before one of the others"
    # Those that started between the two looks had been claimed before it was there.
    assert order.index(urgent) <= len(known) + 4


async def test_b106_without_fair_the_oldest_go_first_and_a_higher_priority_before_them(
    app: Akadze, serve: Serve, table: Table
) -> None:
    task = sleeping(app, "work", 0.05)
    big = await enqueue_many(task, [{}] * 40, limit_key="big")
    for _ in range(2):
        await serve(slots=2)
    await table.until("select count(*) >= 4 from akadze.jobs where started_at is not null")
    small = await enqueue_many(task, [{}] * 2, limit_key="small") + await enqueue_many(task, [{}] * 2)
    urgent = await enqueue(task, limit_key="big", priority=1)

    await until(lambda: ended(table, *big, *small, urgent))

    order = await in_order_of_start(table)
    # A claim that began first may come second, and pass over two jobs that the other worker has locked.
    assert min(order.index(job_id) for job_id in small) >= len(order) - 6
    assert order.index(urgent) < 36


async def test_b107_a_job_planned_for_later_does_not_hold_its_key(
    app: Akadze, serve: Serve, table: Table, raw: Raw
) -> None:
    task = sleeping(app, "work", 0.01)
    await set_limit(raw, "k", max_running=1)
    later = await enqueue(task, limit_key="k", run_at=datetime.now(UTC) + HOUR, priority=32767)
    ready = await enqueue_many(task, [{}] * 5, limit_key="k")
    await serve(slots=2)

    await until(lambda: ended(table, *ready))

    assert (await table.job(later))["state"] == "queued"
    assert await in_order_of_start(table) == ready


async def test_b109_limits_change_and_go_while_jobs_wait(app: Akadze, serve: Serve, table: Table, raw: Raw) -> None:
    task = sleeping(app, "work", 0.1)
    ids = await enqueue_many(task, [{}] * 100, limit_key="k")
    served = await serve(slots=10)
    narrow: list[tuple[datetime, datetime]] = []

    async def now() -> datetime:
        found: datetime = await table.value("select clock_timestamp()")
        return found

    async with asyncio.timeout(60):
        while not await ended(table, *ids):
            await set_limit(raw, "k", max_running=1)
            since = await now()
            await asyncio.sleep(0.2)
            narrow.append((since, await now()))
            await set_limit(raw, "k", max_running=5)
            await asyncio.sleep(0.2)
            await clear_limit(raw, "k")
            assert await list_limits(raw) == ()
            await asyncio.sleep(0.2)
            await set_limit(raw, "k", max_starts=10, window=SECOND)
            assert await list_limits(raw) == (LimitSummary("k", None, 10, SECOND),)
            await asyncio.sleep(0.2)

    assert served.up
    assert await table.value("select count(*) from akadze.jobs where errors <> '[]' or run_count <> 1") == 0
    assert sum([len(await table.rows(STARTS, "k", *span)) for span in narrow]) > 0
    assert [await table.rows(CROWDED_STARTS, "k", *span) for span in narrow] == [[]] * len(narrow)
    always = ("k", "-infinity", "infinity")
    assert await table.rows(CROWDED_STARTS, *always) != [], "with a wider limit they run side by side"


async def test_b109_what_is_left_out_stays_and_what_cannot_be_is_refused(
    app: Akadze, serve: Serve, table: Table, raw: Raw
) -> None:
    await set_limit(raw, "k", max_running=5)
    await set_limit(raw, "k", max_starts=10, window=SECOND)
    assert await list_limits(raw) == (LimitSummary("k", 5, 10, SECOND),)
    wrong: list[dict[str, Any]] = [
        {"max_running": -1},
        {"max_starts": -1, "window": SECOND},
        {"max_starts": 1, "window": timedelta(0)},
    ]
    for options in wrong:
        with pytest.raises(AkadzeError):
            await set_limit(raw, "k", **options)
    assert await list_limits(raw) == (LimitSummary("k", 5, 10, SECOND),)

    task = sleeping(app, "work", 0)
    await set_limit(raw, "k", max_running=0)
    await set_limit(raw, "none", max_starts=0, window=SECOND)
    held = [await enqueue(task, limit_key=key) for key in ("k", "none")]
    await serve()
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    assert [job["state"] for job in await table.jobs(*held)] == ["queued", "queued"]


FINISHED = """
insert into akadze.jobs (task, limit_key, state, run_count, created_at, started_at, finished_at)
select 'one', 'r', 'succeeded', 1, moment, moment, moment
from generate_series(1, %s) n, lateral (select now() - n * interval '1 millisecond') m(moment)
"""


@pytest.mark.heavy
async def test_b110_a_claim_reads_none_of_the_finished_jobs_of_its_key(
    app: Akadze, table: Table, full: bool, raw: Raw
) -> None:
    await table.rows(FINISHED, 500_000 if full else 20_000)
    await set_limit(raw, "r", max_starts=5, window=10 * SECOND)
    one, two = sleeping(app, "one", 0), app.register(lambda: None, name="two", queue="q2")
    for task in (one, two):
        await enqueue_many(task, [{}] * 20, limit_key="r")
    took: list[float] = []
    client = Client(raw)
    claimer = Claimer(client, choose=CHOOSE_LIMITED, tasks=("one", "two"))
    for started in (5, 0, 0):
        began = time.monotonic()
        async with client.transaction():
            await claimer.choose_jobs({"default": 10, "q2": 10})
            assert len(await claimer.take_jobs({"default": 10, "q2": 10})) == started
            took.append(time.monotonic() - began)
            read = await client.value(
                "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
                " where relid = 'akadze.jobs'::regclass"
            )
        assert 0 < read < 1000
    # On a machine that is busy or slow the bound grows with what a plain sum takes, about 0.1 s else.
    began = time.monotonic()
    await client.value("select sum(i) from generate_series(1, 1000000) i")
    assert min(took) < max(0.1, time.monotonic() - began)


@FULL
@pytest.mark.heavy
def test_b110_the_count_of_starts_outlives_the_worker_and_the_finished_jobs(world: World, full: bool) -> None:
    window = timedelta(seconds=10 if full else 3)
    world.rows(FINISHED, 500_000 if full else 1000)
    source = """
    for name, queue in (("one", "q1"), ("two", "q2")):
        app.register(lambda: None, name=name, queue=queue)
    """
    with world.connect() as connection:
        set_limit_now(connection, "r", max_starts=5, window=window)
        world.enqueue("one", 4, queue="q1", limit_key="r")
        world.enqueue("two", 16, queue="q2", limit_key="r")
        first = world.worker(source, slots=8)
        world.until("select count(*) = 5 from akadze.jobs where state = 'succeeded' and queue <> 'default'")
        first.kill()
        begun = world.value("select min(started_at) from akadze.jobs where queue <> 'default'")
        world.rows("delete from akadze.jobs where state = 'succeeded'")

        world.worker(source, "--queue", "q2", slots=8)
        world.until("select count(*) >= 5 from akadze.jobs where state = 'succeeded'")
        sixth = world.value("select min(started_at) from akadze.jobs")
        assert sixth - begun >= window
        assert world.value("select count(*) from akadze.jobs where started_at is not null") == 5

        clear_limit_now(connection, "r")
        set_limit_now(connection, "r", max_starts=5, window=HOUR)
        world.until("select count(*) >= 10 from akadze.jobs where state = 'succeeded'")
