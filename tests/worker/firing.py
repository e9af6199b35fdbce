"""Passes of workers over their schedules, driven by hand, and a look at what they left in the tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from akadze import Akadze
from akadze._worker.schedules import ScheduleReport, Schedules
from akadze.job import Job

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


Tables = psycopg.Connection[dict[str, Any]]


@contextmanager
def look_at(url: str) -> Iterator[Tables]:
    """A connection to look at the tables with."""
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def jobs(tables: Tables, *columns: str) -> list[Any]:
    """The values of one column, or tuples of several, of all jobs in the order of their ids."""
    rows = [tuple(row[column] for column in columns) for row in tables.execute("select * from akadze.jobs order by id")]
    return rows if len(columns) > 1 else [value for (value,) in rows]


def marks(tables: Tables) -> list[tuple[str, datetime, int]]:
    rows = tables.execute("select task, slot, job_id from akadze.periodic_runs order by task, slot").fetchall()
    return [(row["task"], row["slot"], row["job_id"]) for row in rows]


async def step(app: Akadze, now: datetime | None = None, schedules: Schedules | None = None) -> ScheduleReport:
    """One pass of a worker: of a new one unless its schedules are given."""
    async with app.engine.connect() as connection:
        return await (schedules or Schedules(app)).step(connection, now=now)


def add_task(app: Akadze, name: str = "report", **options: Any) -> None:
    app.register(lambda: None, name=name, **options)


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
