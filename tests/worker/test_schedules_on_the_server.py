"""Contract, section 10: schedules and rights, settings of the session, lost connections, the retention of marks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze
from akadze._connections import async_caller
from akadze._statement import statement
from akadze._worker.schedules import Schedules
from akadze.job import Job
from tests.worker.firing import MINUTE, NOON, SECOND, Tables, add_task, jobs, look_at, marks, step

DELETE_OLD_PERIODIC_RUNS = statement("schedules", "delete_old_periodic_runs")
#: For the statement that deletes marks: those of these tests are all of the app's own schedules.
MINE: dict[str, Any] = {"scheduled": ["a", "b", "c", "report"], "of_others": timedelta(days=400)}


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    with look_at(database_url) as tables:
        yield tables


@pytest.mark.parametrize(("own", "within"), [("0", "1min"), ("7s", "7s")])
async def test_a_worker_that_is_cut_off_in_a_fire_does_not_keep_its_task_for_long(
    app: Akadze, own: str, within: str
) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *")
    seen: list[Any] = []
    setting = text("select current_setting('idle_in_transaction_session_timeout')")

    async def look(connection: Any, job: Job) -> None:
        seen.append(await connection.scalar(setting))

    app.hooks.on_enqueue.append(look)
    async with app.engine.connect() as connection:
        await connection.execute(text(f"set idle_in_transaction_session_timeout to '{own}'"))
        await connection.commit()
        assert (await Schedules(app).step(connection, now=NOON)).fired == 1
        assert [*seen, await connection.scalar(setting)] == [within, own]
        await connection.invalidate()


async def test_a_role_with_no_more_than_the_tables_rows_can_fire(app: Akadze, tables: Tables) -> None:
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
                await async_caller(connection).rows(DELETE_OLD_PERIODIC_RUNS, **MINE, retention=SECOND)
            await connection.invalidate()
    finally:
        tables.execute("drop owned by akadze_schedules_test")
        tables.execute("drop role akadze_schedules_test")


async def test_slots_are_due_by_the_clock_of_the_database_however_far_that_of_the_worker_is(
    app: Akadze, tables: Tables
) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 0 * * *")
    tables.execute("create schema ahead")
    tables.execute(
        "create function ahead.clock_timestamp() returns timestamptz language sql"
        " as $$select timestamptz '2040-02-29 00:00:05Z'$$"
    )
    async with app.engine.connect() as connection:
        await connection.execute(text("set search_path to ahead, pg_catalog"))
        await connection.commit()
        assert (await Schedules(app).step(connection)).fired == 1
        await connection.invalidate()
    assert jobs(tables, "run_at") == [datetime(2040, 2, 29, tzinfo=UTC)]


async def test_session_settings_do_not_change_slots(app: Akadze, tables: Tables) -> None:
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


async def delete_old(app: Akadze, retention: timedelta) -> int:
    async with app.engine.begin() as connection:
        [row] = await async_caller(connection).rows(DELETE_OLD_PERIODIC_RUNS, **MINE, retention=retention)
        return int(row["deleted"])


async def test_marks_older_than_the_retention_are_deleted_in_batches_for_each_task(app: Akadze, tables: Tables) -> None:
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


async def test_the_mark_of_a_job_that_has_not_ended_stays(app: Akadze, tables: Tables) -> None:
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


async def test_a_mark_that_another_cleaning_holds_is_stepped_over(app: Akadze, tables: Tables) -> None:
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
