"""Fires of schedules on a real database, with the workers' steps driven by hand."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import event, text

from akadze import Akadze
from akadze._connections import async_caller
from akadze._statement import statement
from akadze._worker.schedules import ScheduleReport, Schedules
from akadze.job import Job

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def tables(database_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A connection to look at the tables with."""
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def jobs(tables: psycopg.Connection[dict[str, Any]], *columns: str) -> list[Any]:
    """The values of one column, or tuples of several, of all jobs in the order of their ids."""
    rows = [tuple(row[column] for column in columns) for row in tables.execute("select * from akadze.jobs order by id")]
    return rows if len(columns) > 1 else [value for (value,) in rows]


def marks(tables: psycopg.Connection[dict[str, Any]]) -> list[tuple[str, datetime, int]]:
    rows = tables.execute("select task, slot, job_id from akadze.periodic_runs order by task, slot").fetchall()
    return [(row["task"], row["slot"], row["job_id"]) for row in rows]


async def step(app: Akadze, now: datetime | None = None, schedules: Schedules | None = None) -> ScheduleReport:
    """One pass of a worker: of a new one unless its schedules are given."""
    async with app.engine.connect() as connection:
        return await (schedules or Schedules(app)).step(connection, now=now)


def add_task(app: Akadze, name: str = "report", **options: Any) -> None:
    app.register(lambda: None, name=name, **options)


# One slot, one job.


async def test_a_due_slot_becomes_a_job_that_is_planned_for_it(app: Akadze, tables: Any) -> None:
    add_task(app, queue="reports", max_attempts=7, priority=3)
    app.add_schedule("report", cron="0 12 * * *")
    report = await step(app, NOON + 5 * SECOND)
    assert (report.fired, report.held, report.failed) == (1, 0, 0)
    [job] = tables.execute("select * from akadze.jobs").fetchall()
    assert (job["task"], job["queue"], job["max_attempts"], job["run_at"]) == ("report", "reports", 7, NOON)
    assert (job["state"], job["priority"], job["args"], job["meta"]) == ("queued", 0, {}, {})
    assert (job["unique_key"], job["limit_key"], job["expires_at"]) == (None, None, None)
    assert marks(tables) == [("report", NOON, job["id"])]


async def test_a_slot_that_has_its_job_is_not_fired_by_another_worker(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE)
    schedules = Schedules(app)
    assert (await step(app, NOON, schedules)).fired == 1
    for late in range(0, 60, 20):
        assert (await step(app, NOON + late * SECOND, schedules)).fired == 0
        assert (await step(app, NOON + late * SECOND)).fired == 0
    assert (await step(app, NOON + MINUTE)).fired == 1
    assert jobs(tables, "run_at") == [NOON, NOON + MINUTE]


async def test_a_finished_or_deleted_job_does_not_free_its_slot(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    await step(app, NOON)
    tables.execute("delete from akadze.jobs")
    assert (await step(app, NOON + SECOND)).fired == 0


@asynccontextmanager
async def held_in_a_hook(app: Akadze, now: datetime) -> AsyncIterator[None]:
    """Another worker's pass, stopped between its insert and its commit until the block ends."""
    reached, released = asyncio.Event(), asyncio.Event()

    async def hold(connection: Any, job: Job) -> None:
        app.hooks.on_enqueue.remove(hold)
        reached.set()
        await released.wait()

    app.hooks.on_enqueue.append(hold)
    other = asyncio.create_task(step(app, now))
    async with asyncio.timeout(20):
        await reached.wait()
        yield
        released.set()
        assert (await other).fired == 1


async def test_three_workers_at_one_slot_enqueue_one_job(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *")
    async with held_in_a_hook(app, NOON):
        second, third = await asyncio.gather(step(app, NOON), step(app, NOON))
        assert (second.fired, third.fired) == (0, 0)
        # They do not wait for the first one, but look again.
        assert (second.held, third.held) == (1, 1)
        assert second.next_in <= 0.5
        assert jobs(tables, "id") == []
    assert (await step(app, NOON + SECOND)).fired == 0
    assert jobs(tables, "run_at") == [NOON]


async def test_a_slot_whose_worker_dies_before_its_commit_is_fired_by_the_next(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *")

    def die(connection: Any, job: Job) -> None:
        raise asyncio.CancelledError

    app.hooks.on_enqueue.append(die)
    with pytest.raises(asyncio.CancelledError):
        await step(app, NOON)
    app.hooks.on_enqueue.remove(die)
    assert jobs(tables, "id") == []
    assert (await step(app, NOON + 30 * SECOND)).fired == 1
    assert jobs(tables, "run_at") == [NOON]


async def test_many_workers_that_step_at_once_enqueue_each_slot_once(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=20 * SECOND)
    workers = [Schedules(app) for _ in range(4)]
    for slot in range(15):
        reports = await asyncio.gather(*(step(app, NOON + slot * 20 * SECOND, worker) for worker in workers))
        assert sum(report.fired for report in reports) == 1
    assert jobs(tables, "run_at") == [NOON + slot * 20 * SECOND for slot in range(15)]


async def test_two_schedules_of_one_task_share_the_slot_where_they_meet(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *", queue="daily")
    app.add_schedule("report", every=MINUTE)
    assert (await step(app, NOON)).fired == 1
    assert (await step(app, NOON + MINUTE)).fired == 1
    assert jobs(tables, "run_at", "queue") == [(NOON, "daily"), (NOON + MINUTE, "default")]


async def test_schedules_of_two_tasks_do_not_share_slots(app: Akadze, tables: Any) -> None:
    for name in ("report", "Report", "réport"):
        add_task(app, name)
        app.add_schedule(name, cron="0 12 * * *")
    assert (await step(app, NOON)).fired == 3
    assert sorted(jobs(tables, "task")) == sorted(["report", "Report", "réport"])


# Lateness.


async def test_after_downtime_only_the_latest_slot_is_fired(app: Akadze, tables: Any) -> None:
    for name, trigger in (("a", {"every": MINUTE}), ("b", {"cron": "* * * * *"})):
        add_task(app, name)
        app.add_schedule(name, **trigger)
    await step(app, NOON - 2 * 60 * MINUTE)
    tables.execute("delete from akadze.jobs")
    assert (await step(app, NOON + 30 * SECOND)).fired == 2
    assert (await step(app, NOON + 40 * SECOND)).fired == 0
    assert jobs(tables, "run_at") == [NOON, NOON]


async def test_a_slot_older_than_grace_is_left_out(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.grace = 10 * SECOND
    app.add_schedule("report", cron="0 12 * * *")
    assert (await step(app, NOON + 11 * SECOND)).fired == 0
    assert (await step(app, NOON + 10 * SECOND)).fired == 1


async def test_short_lived_workers_keep_the_slots_of_a_long_interval(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.grace = 10 * SECOND
    app.add_schedule("report", every=20 * SECOND)
    for second in range(0, 180, 8):
        await step(app, NOON + second * SECOND)
    assert jobs(tables, "run_at") == [NOON + slot * 20 * SECOND for slot in range(9)]


async def test_the_clock_of_the_database_decides(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=SECOND)
    before = tables.execute("select clock_timestamp() as now").fetchone()["now"]
    assert (await step(app)).fired == 1
    after = tables.execute("select clock_timestamp() as now").fetchone()["now"]
    [slot] = jobs(tables, "run_at")
    assert before - SECOND < slot <= after
    assert slot.microsecond == 0


async def test_a_pass_tells_when_the_next_one_is_worth_while(app: Akadze) -> None:
    assert (await step(app, NOON)).next_in == 10
    add_task(app)
    app.add_schedule("report", cron="0 13 * * *")
    # Not all the hour: the database's clock may be set meanwhile.
    assert 9 < (await step(app, NOON)).next_in <= 10
    assert 2 < (await step(app, NOON + 60 * MINUTE - 3 * SECOND)).next_in <= 3


async def test_a_pass_that_finds_nothing_new_reads_the_clock_and_no_more(app: Akadze) -> None:
    add_task(app)
    app.add_schedule("report", cron="* * * * *")
    app.add_schedule("report", every=365 * 24 * 60 * MINUTE)
    statements: list[str] = []

    def note(connection: Any, cursor: Any, sql: str, *rest: Any) -> None:
        statements.append(sql)

    schedules = Schedules(app)
    await step(app, None, schedules)
    event.listen(app.engine.sync_engine, "before_cursor_execute", note)
    await step(app, None, schedules)
    # A minute may have begun in between.
    assert len(statements) in (1, 3)
    del statements[:]
    await step(app, NOON, schedules)
    await step(app, NOON, schedules)
    assert len(statements) == 2


# Without overlap.


async def test_without_overlap_a_fire_waits_for_the_previous_job_and_is_dropped_after_grace(
    app: Akadze, tables: Any
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
    app: Akadze, tables: Any, state: str
) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    worker = Schedules(app)
    await step(app, NOON, worker)
    assert (await step(app, NOON + MINUTE, worker)).held == 1
    tables.execute("update akadze.jobs set state = %s, finished_at = now()", [state])
    assert (await step(app, NOON + MINUTE + 5 * SECOND, worker)).fired == 1
    assert jobs(tables, "run_at") == [NOON, NOON + MINUTE]


async def test_without_overlap_a_job_that_is_still_open_behind_newer_ones_counts(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE)
    for slot in range(3):
        await step(app, NOON + slot * MINUTE)
    tables.execute("update akadze.jobs set state = 'succeeded', finished_at = now() where id > 1")
    app._schedules.clear()
    app.add_schedule("report", every=MINUTE, overlap=False)
    assert (await step(app, NOON + 3 * MINUTE)).held == 1


async def test_without_overlap_jobs_that_no_schedule_made_do_not_count(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    async with app.engine.begin() as connection:
        await app.tasks["report"].using(session=connection).enqueue()
    assert (await step(app, NOON)).fired == 1


async def test_two_workers_that_decide_at_once_do_not_overlap(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    async with held_in_a_hook(app, NOON):
        # The job of the first slot is not visible yet, and another worker comes to the next slot.
        report = await step(app, NOON + MINUTE)
        assert (report.fired, report.held) == (0, 1)
    report = await step(app, NOON + MINUTE)
    assert (report.fired, report.held) == (0, 1)
    assert jobs(tables, "run_at") == [NOON]


async def test_many_workers_with_clocks_apart_never_have_two_jobs_open(app: Akadze, tables: Any) -> None:
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


async def test_a_task_that_is_held_back_does_not_hold_up_the_others(app: Akadze, tables: Any) -> None:
    add_task(app, "slow")
    add_task(app, "quick")
    app.add_schedule("slow", every=MINUTE, overlap=False)
    app.add_schedule("quick", every=MINUTE, overlap=False)
    await step(app, NOON)
    tables.execute("update akadze.jobs set state = 'succeeded', finished_at = now() where task = 'quick'")
    report = await step(app, NOON + MINUTE)
    assert (report.fired, report.held) == (1, 1)
    assert jobs(tables, "task", "run_at")[-1] == ("quick", NOON + MINUTE)


# Hooks and wake-ups.


async def test_on_enqueue_hooks_see_the_job_in_its_transaction(app: Akadze, tables: Any) -> None:
    add_task(app, queue="reports", max_attempts=7)
    app.add_schedule("report", cron="0 12 * * *")
    tables.execute("create table public.seen (job_id bigint)")
    seen: list[Job] = []

    async def note(connection: Any, job: Job) -> None:
        seen.append(job)
        await connection.execute(text("insert into public.seen values (:id)"), {"id": job.id})

    app.hooks.on_enqueue += [note, lambda connection, job: seen.append(job)]
    assert (await step(app, NOON)).fired == 1
    assert seen == [seen[0]] * 2
    job = seen[0]
    assert (job.id, job.task, job.queue, job.max_attempts) == (jobs(tables, "id")[0], "report", "reports", 7)
    assert (job.state, job.args, job.meta, job.priority, job.attempt, job.worker_id) == ("queued", {}, {}, 0, 0, None)
    assert tables.execute("select job_id from public.seen").fetchall() == [{"job_id": job.id}]
    # A slot that is done is not told of again.
    await step(app, NOON + SECOND)
    assert len(seen) == 2


async def test_a_hook_that_fails_leaves_its_slot_open_and_the_other_schedules_alone(
    app: Akadze, tables: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        add_task(app, name)
        app.add_schedule(name, every=MINUTE)
    tables.execute("create table public.seen (task text)")

    async def refuse(connection: Any, job: Job) -> None:
        await connection.execute(text("insert into public.seen values (:task)"), {"task": job.task})
        if job.task == "b":
            raise LookupError("no such thing")

    app.hooks.on_enqueue.append(refuse)
    worker = Schedules(app)
    with caplog.at_level(logging.ERROR, logger="akadze.worker"):
        report = await step(app, NOON, worker)
    assert (report.fired, report.failed) == (2, 1)
    assert report.next_in <= 0.5
    assert "schedule of task b: an on_enqueue hook failed" in caplog.text
    assert "LookupError: no such thing" in caplog.text
    assert sorted(jobs(tables, "task")) == ["a", "c"]
    assert [task for task, _, _ in marks(tables)] == ["a", "c"]
    assert len(tables.execute("select from public.seen").fetchall()) == 2

    app.hooks.on_enqueue.clear()
    assert (await step(app, NOON + 30 * SECOND, worker)).fired == 1
    assert jobs(tables, "task", "run_at")[-1] == ("b", NOON)


async def test_a_hook_that_breaks_its_transaction_does_not_stop_the_pass(app: Akadze, tables: Any) -> None:
    for name in ("a", "b"):
        add_task(app, name)
        app.add_schedule(name, every=MINUTE)

    async def break_it(connection: Any, job: Job) -> None:
        if job.task == "a":
            await connection.execute(text("select 1 / 0"))

    app.hooks.on_enqueue.append(break_it)
    report = await step(app, NOON)
    assert (report.fired, report.failed) == (1, 1)
    assert jobs(tables, "task") == ["b"]


@pytest.mark.parametrize(
    ("sleeping", "queue", "told"), [(True, "reports", 1), (False, "reports", 0), (True, "mail", 0)]
)
async def test_a_fire_wakes_a_worker_of_its_queue_that_sleeps(
    app: Akadze, tables: Any, sleeping: bool, queue: str, told: int
) -> None:
    add_task(app, queue="reports")
    app.add_schedule("report", cron="0 12 * * *")
    tables.execute(
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl, sleeping)"
        " values (gen_random_uuid(), 'host', 1, %s, interval '1 minute', %s)",
        [[queue], sleeping],
    )
    tables.execute("listen akadze")
    assert (await step(app, NOON)).fired == 1
    # Notifications come in the order of commits: nothing of ours can come after this one.
    tables.execute("select pg_notify('akadze', 'end of test')")
    payloads = [notice.payload for notice in tables.notifies(timeout=5, stop_after=told + 1)]
    assert payloads == ["reports"] * told + ["end of test"]


# The database's side.


async def test_a_role_with_no_more_than_the_tables_rows_can_fire(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=False)
    if not tables.execute(
        "select rolcreaterole or rolsuper as may from pg_roles where rolname = current_user"
    ).fetchone()["may"]:
        pytest.skip("the role of the tests may not make another role")
    tables.execute("create role akadze_schedules_test")
    try:
        tables.execute("grant usage on schema akadze to akadze_schedules_test")
        tables.execute("grant select, insert, update, delete on all tables in schema akadze to akadze_schedules_test")
        async with app.engine.connect() as connection:
            await connection.execute(text("set session authorization akadze_schedules_test"))
            await connection.commit()
            assert (await Schedules(app).step(connection, now=NOON)).fired == 1
            assert (await Schedules(app).step(connection, now=NOON + MINUTE)).held == 1
            async with connection.begin():
                await async_caller(connection).rows(DELETE_OLD_PERIODIC_RUNS, retention=SECOND)
            await connection.invalidate()
    finally:
        tables.execute("drop owned by akadze_schedules_test")
        tables.execute("drop role akadze_schedules_test")


async def test_session_settings_do_not_change_slots(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=SECOND)
    async with app.engine.connect() as connection:
        for setting in (
            "set timezone to 'America/St_Johns'",
            "set datestyle to 'German'",
            "set intervalstyle to 'sql_standard'",
            "set search_path to ''",
        ):
            await connection.execute(text(setting))
        await connection.commit()
        assert (await Schedules(app).step(connection)).fired == 1
        await connection.invalidate()
    [slot] = jobs(tables, "run_at")
    assert timedelta(0) <= datetime.now(UTC) - slot < MINUTE


DELETE_OLD_PERIODIC_RUNS = statement("schedules", "delete_old_periodic_runs")


async def delete_old(app: Akadze, retention: timedelta) -> int:
    async with app.engine.begin() as connection:
        [row] = await async_caller(connection).rows(DELETE_OLD_PERIODIC_RUNS, retention=retention)
        return int(row["deleted"])


async def test_marks_older_than_the_retention_are_deleted_in_batches_for_each_task(app: Akadze, tables: Any) -> None:
    tables.execute(
        "insert into akadze.periodic_runs (task, slot)"
        " select task, now() - make_interval(mins => minute)"
        " from unnest(array['a', 'b', 'c']) as task, generate_series(1, 1500) as minute"
        " where task = 'a' or minute <= 100"
    )
    tables.execute("insert into akadze.periodic_runs (task, slot) values ('b', now() + interval '1 day')")
    retention = timedelta(minutes=50, seconds=30)
    assert await delete_old(app, retention) == 1000 + 50 + 50
    oldest = tables.execute(
        "select min(slot) as slot, now() as now from akadze.periodic_runs where task = 'a'"
    ).fetchone()
    assert oldest["slot"] == pytest.approx(oldest["now"] - 500 * MINUTE, abs=MINUTE)
    assert await delete_old(app, retention) == 450
    assert await delete_old(app, retention) == 0
    kept = tables.execute("select task, count(*) from akadze.periodic_runs group by task order by task").fetchall()
    assert [(row["task"], row["count"]) for row in kept] == [("a", 50), ("b", 51), ("c", 50)]


async def test_the_mark_of_a_job_that_has_not_ended_stays(app: Akadze, tables: Any) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE)
    for slot in range(4):
        await step(app, NOON + slot * MINUTE)
    tables.execute("update akadze.periodic_runs set slot = slot - interval '10 years'")
    tables.execute("update akadze.jobs set state = 'succeeded' where id = 1")
    tables.execute("update akadze.jobs set state = 'running' where id = 2")
    tables.execute("delete from akadze.jobs where id = 3")
    assert await delete_old(app, timedelta(days=7)) == 2
    assert [job_id for _, _, job_id in marks(tables)] == [2, 4]


async def test_a_mark_that_another_cleaning_holds_is_stepped_over(app: Akadze, tables: Any) -> None:
    tables.execute(
        "insert into akadze.periodic_runs (task, slot)"
        " select 'a', now() - make_interval(days => day) from generate_series(1, 10) as day"
    )
    async with app.engine.begin() as other, asyncio.timeout(20):
        await other.execute(
            text("select slot from akadze.periodic_runs where slot < now() - interval '5.5 days' for update")
        )
        assert await delete_old(app, timedelta(hours=12)) == 5
    assert await delete_old(app, timedelta(hours=12)) == 5


async def test_without_marks_there_is_nothing_to_delete(app: Akadze) -> None:
    assert await delete_old(app, SECOND) == 0
