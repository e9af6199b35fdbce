"""Contract, sections 1, 7, 9 and 10: retention: a worker deletes what is old, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from akadze import Akadze, Cancel, Fail, current, request_cancel
from akadze._worker.cleanup import Cleanup
from akadze._worker.schedules import Schedules
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many

DAY = timedelta(days=1)


@pytest.fixture
async def connection(app: Akadze) -> Any:
    async with app.engine.connect() as connection:
        yield connection


async def clean(
    connection: AsyncConnection,
    retention: timedelta,
    grace: timedelta = timedelta(minutes=1),
    scheduled: Collection[str] = (),
) -> int:
    """Let the whole walk be done; return the number of its steps."""
    cleanup = Cleanup(retention, grace, scheduled)
    steps = 1
    while await cleanup.step(connection):
        steps += 1
    return steps


@pytest.mark.parametrize("option", ["retention", "grace"])
async def test_a_time_that_goes_back_beyond_all_instants_of_the_database_keeps_everything(
    app: Akadze, table: Table, connection: AsyncConnection, option: str
) -> None:
    job_id = await enqueue(app.register(lambda: None, name="task"))
    await table.rows("update akadze.jobs set state = 'failed', created_at = '2000-01-01', finished_at = '2000-01-01'")
    await table.rows("insert into akadze.periodic_runs (task, slot) values ('task', '2000-01-01')")
    times = {"retention": 9000 * 365 * DAY, "grace": DAY} | {option: timedelta.max}
    assert await clean(connection, **times) == 1
    assert await table.states() == {job_id: "failed"}
    assert await table.value("select count(*) from akadze.periodic_runs") == 1


async def test_ended_jobs_of_every_kind_go_after_the_retention_and_the_others_stay(
    database_url: str, table: Table, serve: Serve
) -> None:
    app = Akadze(database_url=database_url, retention=timedelta(seconds=1), grace=timedelta(seconds=0.5))
    release = asyncio.Event()

    @app.task("task", max_attempts=1)
    async def task(how: str) -> None:
        if how == "fail":
            raise Fail
        if how == "cancel":
            raise Cancel
        if how == "complete":
            async with current().complete_tx():
                return
        if how == "wait":
            await release.wait()

    ended = [await enqueue(task, {"how": how}) for how in ("succeed", "fail", "cancel", "complete")]
    asked = await enqueue(task, {"how": "succeed"}, delay=DAY)
    expired = await enqueue(task, {"how": "succeed"}, expires_at=datetime.now(UTC) - DAY)
    planned = await enqueue(task, {"how": "succeed"}, delay=DAY)
    running = await enqueue(task, {"how": "wait"})
    # A pause keeps one queued that has been ready for long.
    other = app.register(task.fn, name="other", queue="other")
    waiting = await enqueue(other, {"how": "succeed"})
    async with app.engine.begin() as connection:
        await request_cancel(connection, asked)
    await table.rows("insert into akadze.queue_pauses (queue) values ('other')")
    await table.rows(
        "update akadze.jobs set created_at = now() - interval '1 hour', run_at = run_at - interval '1 hour'"
    )
    served = await serve(app, slots=5)
    await table.until("select count(*) = 3 from akadze.jobs")
    assert set(await table.states()) == {planned, running, waiting}
    assert set(ended) & set(await table.states()) == set()
    assert expired not in await table.states()
    release.set()
    await table.until("select count(*) = 2 from akadze.jobs")
    await served.stop()
    await app.aclose()


async def test_a_job_is_kept_for_the_retention_after_its_end_not_after_its_enqueue(
    app: Akadze, connection: AsyncConnection, table: Table
) -> None:
    await table.rows(
        "insert into akadze.jobs (task, state, created_at, finished_at) values"
        " ('old', 'succeeded', now() - interval '3 days', now() - interval '25 hours'),"
        " ('late', 'failed', now() - interval '3 days', now() - interval '23 hours'),"
        " ('young', 'cancelled', now() - interval '1 hour', now())"
    )
    await clean(connection, DAY)
    assert [row["task"] for row in await table.rows("select task from akadze.jobs order by id")] == ["late", "young"]


async def test_old_jobs_behind_more_than_a_batch_of_kept_ones_are_found(
    app: Akadze, connection: AsyncConnection, table: Table
) -> None:
    await table.rows(
        "insert into akadze.jobs (task, created_at, run_at) select 'kept', now() - interval '3 days',"
        " now() + interval '1 day' from generate_series(1, 2500)"
    )
    await table.rows(
        "insert into akadze.jobs (task, state, created_at, finished_at) select 'old', 'succeeded',"
        " now() - interval '3 days', now() - interval '2 days' from generate_series(1, 1500)"
    )
    assert await clean(connection, DAY) >= 4
    assert await table.rows("select task, count(*) from akadze.jobs group by 1") == [{"task": "kept", "count": 2500}]


async def test_a_row_that_somebody_holds_is_left_for_the_next_walk(
    app: Akadze, connection: AsyncConnection, table: Table
) -> None:
    await table.rows(
        "insert into akadze.jobs (task, state, created_at, finished_at) select 'old', 'succeeded',"
        " now() - interval '3 days', now() - interval '2 days' from generate_series(1, 3)"
    )
    async with app.engine.begin() as other:
        await other.exec_driver_sql("select from akadze.jobs where id = 2 for update")
        await asyncio.wait_for(clean(connection, DAY), 20)
        assert set(await table.states()) == {2}
    await clean(connection, DAY)
    assert await table.states() == {}


async def test_rows_of_workers_long_dead_go_when_they_own_nothing_any_more(
    app: Akadze, connection: AsyncConnection, table: Table
) -> None:
    async def body() -> None:
        pass

    job_id = await enqueue(app.register(body, name="task"))
    await table.add_worker(ttl=10, silent_for=3600)
    owner = await table.add_worker(ttl=10, silent_for=3600)
    silent = await table.add_worker(ttl=10, silent_for=15)
    patient = await table.add_worker(ttl=7200, silent_for=3600)
    await table.start_elsewhere(owner, job_id)
    await clean(connection, DAY)
    left = {str(row["id"]) for row in await table.rows("select id from akadze.workers")}
    assert left == {owner, silent, patient}


async def test_start_marks_go_when_they_have_left_their_window_or_lost_their_limit(
    app: Akadze, connection: AsyncConnection, table: Table
) -> None:
    await table.rows(
        'insert into akadze.limits (key, max_running, max_starts, "window") values'
        " ('rate', null, 5, interval '1 hour'), ('running', 5, null, null)"
    )
    await table.rows(
        "insert into akadze.limit_starts (key, started_at) values ('rate', now() - interval '59 minutes'),"
        " ('rate', now() - interval '2 hours'), ('running', now()), ('no limit', now())"
    )
    await clean(connection, DAY)
    rows = await table.rows("select key, started_at > now() - interval '1 hour' as young from akadze.limit_starts")
    assert rows == [{"key": "rate", "young": True}]


async def test_old_periodic_runs_go_but_not_within_the_grace(connection: AsyncConnection, table: Table) -> None:
    await table.rows(
        "insert into akadze.periodic_runs (task, slot, created_at) values"
        " ('old', now() - interval '2 days', now() - interval '2 days'), ('young', now(), now())"
    )
    await clean(connection, DAY, grace=3 * DAY, scheduled=["old", "young"])
    assert await table.value("select count(*) from akadze.periodic_runs") == 2
    await clean(connection, DAY, scheduled=["old", "young"])
    assert await table.rows("select task from akadze.periodic_runs") == [{"task": "young"}]


async def test_a_slot_does_not_fire_again_because_another_app_looks_less_far_back(
    database_url: str, connection: AsyncConnection, table: Table
) -> None:
    app = Akadze(database_url=database_url, grace=10 * DAY)

    async def body() -> None:
        pass

    app.register(body, name="yearly")
    of_last_week = datetime.now(UTC) - 8 * DAY
    app.add_schedule("yearly", cron=f"0 0 {of_last_week.day} {of_last_week.month} *")
    assert (await Schedules(app).step(connection)).fired == 1
    await table.rows("update akadze.jobs set state = 'succeeded', finished_at = now()")

    await clean(connection, 7 * DAY)

    assert (await Schedules(app).step(connection)).fired == 0


async def test_marks_of_slots_that_no_app_has_any_more_go_in_the_end(connection: AsyncConnection, table: Table) -> None:
    await table.rows(
        "insert into akadze.periodic_runs (task, slot)"
        " values ('gone', now() - interval '401 days'), ('another', now() - interval '399 days')"
    )
    await clean(connection, DAY, scheduled=["mine"])
    assert await table.rows("select task from akadze.periodic_runs") == [{"task": "another"}]


async def test_workers_that_clean_at_once_do_not_hinder_each_other(app: Akadze, table: Table) -> None:
    async def body() -> None:
        pass

    await enqueue_many(app.register(body, name="task"), [{}] * 10, delay=DAY)
    await table.rows(
        "insert into akadze.jobs (task, state, created_at, finished_at) select 'old', 'succeeded',"
        " now() - interval '3 days', now() - interval '2 days' from generate_series(1, 3000)"
    )
    await table.rows("update akadze.jobs set created_at = now() - interval '3 days'")

    async def one() -> None:
        async with app.engine.connect() as connection:
            await clean(connection, DAY)

    await asyncio.wait_for(asyncio.gather(*[one() for _ in range(4)]), 30)
    assert await table.value("select count(*) from akadze.jobs") == 10
