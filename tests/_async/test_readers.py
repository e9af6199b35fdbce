"""Contract, section 15: readers see committed rows and write nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from sqlalchemy import text

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

from .conftest import Engine

INSERT_WORKER = """
insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl) values (gen_random_uuid(), 'h', 1, '{}', '30 s')
"""
READERS: list[Any] = [list_jobs, list_limits, list_paused_queues, list_workers, queue_snapshot, render_metrics]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
async def test_a_reader_sees_what_is_committed_and_works_where_nothing_may_be_written(
    reader: Any, engine: Engine, app: Akadze, database_url: str
) -> None:
    note = app.register(lambda: None, name="note")
    before = await reader(engine)
    async with engine.begin() as connection:
        await note.using(session=connection, delay=timedelta(hours=1)).enqueue()
        await set_limit(connection, "k", 1)
        await pause_queue(connection, "mail")
        await connection.execute(text(INSERT_WORKER))
        assert await reader(engine) == before
    seen = await reader(engine)
    assert seen != before
    options = "-c default_transaction_read_only=on"
    async with await AsyncConnection.connect(database_url, options=options) as read_only:
        assert await reader(read_only) == seen
