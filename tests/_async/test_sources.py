"""Contract, section 1: what reads from an engine reads from an open connection, a session or a pool just as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg_pool
import pytest
from psycopg import AsyncConnection
from sqlalchemy.ext.asyncio import AsyncSession

from akadze import (
    Akadze,
    list_jobs,
    list_limits,
    list_paused_queues,
    list_workers,
    pause_queue,
    queue_snapshot,
    set_limit,
)
from akadze.metrics import render_metrics
from tests.families import few

from .conftest import Engine, Rows


async def counts(source: Any) -> Any:
    """What of a snapshot does not grow older while it is read."""
    snapshot = await queue_snapshot(source)
    return snapshot.counts, snapshot.busy


async def lines(source: Any) -> list[str]:
    return [line for line in (await render_metrics(source)).splitlines() if "lag" not in line]


@pytest.fixture(
    params=few(["connection", "connection in a transaction", "session", "psycopg", "pool"], kept=["session", "pool"])
)
async def source(request: pytest.FixtureRequest, engine: Engine, database_url: str) -> AsyncIterator[Any]:
    if request.param == "connection":
        async with engine.connect() as connection:
            yield connection
    elif request.param == "connection in a transaction":
        async with engine.begin() as connection:
            yield connection
    elif request.param == "session":
        async with AsyncSession(engine) as session:
            yield session
    elif request.param == "psycopg":
        async with await AsyncConnection.connect(database_url) as raw:
            yield raw
    else:
        async with psycopg_pool.AsyncConnectionPool(database_url, min_size=1, max_size=1, open=False) as pool:
            yield pool


@pytest.mark.parametrize("read", [list_jobs, list_limits, list_paused_queues, list_workers, counts, lines])
async def test_a_source_of_any_kind_is_read_as_an_engine_is(
    read: Any, source: Any, engine: Engine, app: Akadze, rows: Rows
) -> None:
    task = app.register(lambda: None, name="t")
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue()
        await set_limit(connection, "k", 1)
        await pause_queue(connection, "q")
    await rows(
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
        " values (gen_random_uuid(), 'here', 1, array['q'], '30 s')"
    )
    found = await read(source)
    assert found
    assert found == await read(engine)
    assert found == await read(source)
