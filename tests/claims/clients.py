"""Connections of a test that it steers by hand: one statement at a time, transactions held open as long as it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from akadze._statement import Statement
from tests.waiting import until

Row = dict[str, Any]


class Client:
    """A connection in autocommit."""

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw

    @property
    def pid(self) -> int:
        return self.raw.info.backend_pid

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Execute one of akadze's statements."""
        return await self.sql(statement.pyformat, parameters)

    async def sql(self, query: str, parameters: Any = None) -> list[Row]:
        """Execute a statement of the test's own."""
        async with psycopg.AsyncCursor(self.raw, row_factory=dict_row) as cursor:
            await cursor.execute(query, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def value(self, query: str, parameters: Any = None) -> Any:
        """Return the first column of the first row."""
        return next(iter((await self.sql(query, parameters))[0].values()))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        await self.begin()
        try:
            yield
        except BaseException:
            await self.rollback()
            raise
        await self.commit()

    async def begin(self) -> None:
        await self.raw.execute("begin isolation level read committed")

    async def commit(self) -> None:
        await self.raw.execute("commit")

    async def rollback(self) -> None:
        await self.raw.execute("rollback")


class Watcher:
    """Sees which sessions of the database wait for a lock."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def count(self) -> int:
        found: int = await self._client.value(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        )
        return found

    async def start(self, coroutine: Coroutine[Any, Any, Any], *, waiting: int = 1) -> asyncio.Task[Any]:
        """Start the coroutine and return when it has ended, or waits for a lock as the last of ``waiting``."""
        task = asyncio.get_running_loop().create_task(coroutine)

        async def ended_or_waits() -> bool:
            return task.done() or await self.count() >= waiting

        await until(ended_or_waits)
        return task

    async def start_and_see_waiting(
        self, coroutine: Coroutine[Any, Any, Any], *, waiting: int = 1
    ) -> asyncio.Task[Any]:
        """Start the coroutine and return when it waits for a lock; fail if it ends instead."""
        task = await self.start(coroutine, waiting=waiting)
        assert not task.done(), f"it has ended without waiting for a lock: {task.result()}"
        return task


def variant(statement: Statement, *changes: tuple[str, str]) -> Statement:
    """Return the statement without one of its guards, to show that a check can fail."""
    text = statement.sql
    for old, new in changes:
        assert old in text, f"{statement} has no {old!r} any more"
        text = text.replace(old, new)
    return Statement(f"{statement.name} changed", text)
