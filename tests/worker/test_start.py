"""Contract, section 7: a worker that is starting when the database breaks off what it does."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.errors import ReadOnlySqlTransaction

from akadze import Akadze
from tests.waiting import until
from tests.worker.proxy import Proxy
from tests.worker.serving import Served
from tests.worker.table import SESSIONS, Table, enqueue

_WAITING = f"select pid {SESSIONS} and wait_event_type = 'Lock'"


@pytest.fixture
async def starting(app: Akadze) -> AsyncIterator[list[Served]]:
    """Workers that the test starts itself, since they do not serve at once."""
    served: list[Served] = []
    yield served
    for each in served:
        await each.end()


@contextmanager
def _held(database_url: str, table: str) -> Iterator[None]:
    """Have whoever writes to the table, and for the list of migrations whoever reads it, wait."""
    with psycopg.connect(database_url) as connection:
        connection.execute(f"lock table akadze.{table} in access exclusive mode")
        yield


async def _terminate_who_waits(table: Table, *, but: int = 0) -> int:
    """Terminate the session that waits for a lock, which is another one than ``but``; return its process id."""
    waiting = f"{_WAITING} and pid <> %s"
    await until(lambda: table.rows(waiting, but))
    pid = await table.value(waiting, but)
    await table.rows("select pg_terminate_backend(%s)", pid)
    return int(pid)


@pytest.mark.parametrize("part", ["schema_migrations", "workers"])
async def test_a_worker_whose_connection_ends_while_it_starts_serves_all_the_same(
    app: Akadze,
    table: Table,
    database_url: str,
    starting: list[Served],
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    with _held(database_url, part):
        starting.append(Served(app))
        first = await _terminate_who_waits(table)
        await _terminate_who_waits(table, but=first)
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    await starting[0].stop()
    assert not await table.rows("select from akadze.workers")
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "(start: AdminShutdown: terminating connection" in said[0]
    assert said[1] == "the database is back"


async def test_a_worker_that_starts_on_a_server_that_refuses_writes_serves_once_it_takes_them(
    app: Akadze, table: Table, starting: list[Served], caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    job_id = await enqueue(task)
    name = await table.value("select current_database()")
    await table.rows(f"alter database {name} set default_transaction_read_only = on")
    try:
        starting.append(Served(app))
        await until(lambda: ReadOnlySqlTransaction.__name__ in caplog.text)
    finally:
        await table.rows(f"alter database {name} reset default_transaction_read_only")
    assert (await table.ended(job_id))["state"] == "succeeded"


async def test_a_worker_whose_server_goes_away_while_it_starts_waits_for_it(
    distant: Akadze, proxy: Proxy, table: Table, database_url: str, starting: list[Served]
) -> None:
    @distant.task("task")
    async def task() -> None:
        pass

    with _held(database_url, "workers"):
        starting.append(Served(distant))
        await until(lambda: table.rows(_WAITING))
        proxy.cut()
        await until(lambda: proxy.refused)
    assert starting[0].up
    proxy.restore()
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"


async def test_a_worker_whose_server_is_away_while_it_starts_is_stopped(
    distant: Akadze, proxy: Proxy, table: Table, database_url: str, starting: list[Served]
) -> None:
    distant.register(lambda: None, name="task")
    with _held(database_url, "workers"):
        starting.append(Served(distant))
        await until(lambda: table.rows(_WAITING))
        proxy.cut()
        await until(lambda: proxy.refused)
        await starting[0].stop()


async def test_a_worker_that_starts_again_and_waits_for_a_lock_is_stopped(
    app: Akadze, table: Table, database_url: str, starting: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_WRITE", 0.3)
    app.register(lambda: None, name="task")
    with _held(database_url, "workers"):
        starting.append(Served(app))
        first = await _terminate_who_waits(table)
        await until(lambda: table.rows(f"{_WAITING} and pid <> {first}"))
        await starting[0].stop()
    await table.until(f"select not exists ({_WAITING})")
    assert not await table.rows("select from akadze.workers")
