"""Contract, section 5: connections that a worker holds beside the pool."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from akadze import Akadze
from akadze._connections import driver_connection
from akadze._worker.connect import close_held, open_held, psycopg_engine
from tests.worker.table import SESSIONS, Table


async def _cancelled(connection: AsyncConnection, table: Table) -> None:
    async def sleep() -> None:
        async with connection.begin():
            await connection.execute(text("select pg_sleep(600)"))

    sleeping = asyncio.create_task(sleep())
    await table.until(f"select count(*) = 1 {SESSIONS} and wait_event = 'PgSleep'")
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping


async def _terminated(connection: AsyncConnection, table: Table) -> None:
    with pytest.raises(DBAPIError):
        await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))


async def _in_a_transaction(connection: AsyncConnection, table: Table) -> None:
    await connection.execute(text("select 1"))


async def _untouched(connection: AsyncConnection, table: Table) -> None:
    pass


@pytest.mark.parametrize("what", [_cancelled, _terminated, _in_a_transaction, _untouched])
async def test_a_held_connection_is_closed_whatever_has_happened_to_it(app: Akadze, table: Table, what: object) -> None:
    connection = await open_held(app.engine)
    below = driver_connection(connection)
    assert below is not None
    pid = below.info.backend_pid
    assert callable(what)
    await what(connection, table)
    await close_held(connection)
    assert below.closed
    await table.until(f"select count(*) = 0 {SESSIONS} and pid = %s", pid)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_error_on_a_held_connection_shows_no_parameters(database_url: str, driver: str) -> None:
    # They are arguments and results of jobs, and the error may be what stops the worker.
    app = Akadze(database_url=database_url.replace("postgresql://", f"postgresql+{driver}://"))
    connection = await open_held(psycopg_engine(app.engine))
    with pytest.raises(DBAPIError) as caught:
        await connection.execute(text("select 1 / 0, cast(:result as text)"), {"result": "a secret"})
    assert "a secret" not in str(caught.value)
    await close_held(connection)
    await app.aclose()


async def test_a_held_connection_takes_nobodys_place_in_the_pool(database_url: str, table: Table) -> None:
    app = Akadze(database_url=database_url, pool_size=1)
    held = [await open_held(app.engine) for _ in range(3)]
    pool = app.engine.pool
    assert pool.checkedout() == 0  # type: ignore[attr-defined]  # of a QueuePool
    for connection in held:
        await close_held(connection)
    await app.aclose()
