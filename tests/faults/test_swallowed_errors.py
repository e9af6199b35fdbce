"""Contract, sections 3, 5, 10 and 11: hooks that swallow an error of the database, whose COMMIT then rolls back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

import akadze.sync
from akadze import Akadze, current
from akadze._urls import sqlalchemy_url
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

WRONG = "select 1 / 0"


@pytest.fixture
def swallow(app: Akadze) -> Callable[[str], None]:
    """Add an on_transition hook that breaks the transaction of each move to this state, and tells nobody."""

    def add(state: str) -> None:
        async def on_transition(connection: Any, job: Any, from_state: str, to_state: str) -> None:
            if to_state == state:
                with suppress(DBAPIError):
                    await connection.execute(text(WRONG))

        app.hooks.on_transition.append(on_transition)

    return add


async def test_an_outcome_whose_hook_swallows_an_error_is_not_taken_for_written(
    app: Akadze, table: Table, serve: Serve, swallow: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    @app.task("task")
    async def task(good: bool) -> None:
        runs.append(current().job.id)
        if good:
            raise akadze.Cancel

    swallow("succeeded")
    bad, good = await enqueue(task, {"good": False}), await enqueue(task, {"good": True})
    served = await serve(slots=2)
    await table.in_state(good, "cancelled")
    # A look at the table for runs that this worker does not know of comes once per two heartbeats, twice here.
    beats = "select heartbeat_at > started_at + interval '1.2 s' from akadze.workers"
    await table.until(beats)
    assert (await table.job(bad))["state"] == "running"
    assert sorted(runs) == [bad, good]
    assert f"job {bad} stays running" in caplog.text
    await served.stop()


async def test_a_claim_whose_hook_swallows_an_error_is_put_back(
    app: Akadze, table: Table, serve: Serve, swallow: Callable[[str], None]
) -> None:
    runs: list[int] = []

    @app.task("task")
    async def task() -> None:
        runs.append(current().job.id)

    swallow("running")
    job = await enqueue(task)
    await serve()
    await table.until("select run_at > created_at from akadze.jobs where id = %s", job)
    assert (await table.job(job))["run_count"] == 0
    assert not runs


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_block_whose_hook_swallows_an_error_has_not_finished_its_job(
    colour: str, app: Akadze, table: Table, serve: Serve
) -> None:
    await table.rows("create table public.written (number int)")

    @app.task("async", max_attempts=1)
    async def async_task() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text("insert into public.written values (1)"))

    @app.task("sync", max_attempts=1)
    def sync_task() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text("insert into public.written values (1)"))

    async def on_transition(connection: Any, job: Any, from_state: str, to_state: str) -> None:
        if to_state == "succeeded":
            with suppress(DBAPIError):
                await connection.execute(text(WRONG))

    def on_transition_sync(connection: Any, job: Any, from_state: str, to_state: str) -> None:
        if to_state == "succeeded":
            with suppress(DBAPIError):
                connection.execute(text(WRONG))

    app.hooks.on_transition.append(on_transition if colour == "async" else on_transition_sync)
    job = await enqueue(async_task if colour == "async" else sync_task)
    await serve()
    row = await table.ended(job)
    assert (row["state"], row["run_count"]) == ("failed", 1)
    assert await table.value("select count(*) from public.written") == 0


async def test_a_fire_whose_hook_swallows_an_error_is_tried_again(app: Akadze, table: Table, serve: Serve) -> None:
    calls: list[int] = []

    async def on_enqueue(connection: Any, job: Any) -> None:
        calls.append(job.id)
        if len(calls) == 1:
            with suppress(DBAPIError):
                await connection.execute(text(WRONG))

    app.hooks.on_enqueue.append(on_enqueue)

    @app.periodic("task", every=timedelta(days=36500))
    async def task() -> None:
        pass

    app.grace = timedelta(days=36500)
    await serve()
    await table.until("select count(*) = 1 from akadze.jobs where state = 'succeeded'")
    assert len(calls) == 2


async def _psycopg(url: str, send: Callable[[Any], Any]) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await send(connection)


async def _alchemy(url: str, send: Callable[[Any], Any]) -> None:
    engine = create_async_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection, connection.begin():
        await send(connection)
    await engine.dispose()


@pytest.mark.parametrize("caller", [_psycopg, _alchemy])
async def test_an_enqueue_in_autocommit_whose_hook_swallows_an_error_raises(
    caller: Callable[..., Any], app: Akadze, table: Table, database_url: str
) -> None:
    async def on_enqueue(connection: Any, job: Any) -> None:
        with suppress(psycopg.Error, DBAPIError):
            await connection.execute(WRONG if isinstance(connection, psycopg.AsyncConnection) else text(WRONG))

    app.hooks.on_enqueue.append(on_enqueue)

    @app.task("task")
    async def task() -> None:
        pass

    async def send(connection: Any) -> None:
        with pytest.raises((psycopg.errors.InFailedSqlTransaction, DBAPIError)):
            await task.using(session=connection).enqueue()
        app.hooks.on_enqueue.clear()
        await task.using(session=connection).enqueue()

    await caller(database_url, send)
    assert await table.value("select count(*) from akadze.jobs") == 1


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
async def test_an_enqueue_whose_hook_swallows_an_error_leaves_the_transaction_usable(
    kind: str, app: Akadze, table: Table, database_url: str
) -> None:
    def on_enqueue(connection: Any, job: Any) -> None:
        with suppress(psycopg.Error, DBAPIError):
            connection.execute(WRONG if isinstance(connection, psycopg.Connection) else text(WRONG))

    app.hooks.on_enqueue.append(on_enqueue)

    @app.task("task")
    async def task() -> None:
        pass

    if kind == "psycopg":
        with psycopg.connect(database_url) as connection:
            with pytest.raises(psycopg.Error):
                task.using(session=connection).enqueue()
            app.hooks.on_enqueue.clear()
            task.using(session=connection).enqueue()
    else:
        engine = create_engine(sqlalchemy_url(database_url))
        with engine.begin() as above:
            with pytest.raises(DBAPIError):
                task.using(session=above).enqueue()
            app.hooks.on_enqueue.clear()
            task.using(session=above).enqueue()
        engine.dispose()
    assert await table.value("select count(*) from akadze.jobs") == 1
