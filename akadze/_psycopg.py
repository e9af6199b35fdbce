"""Callers' connections of psycopg 3, both colours side by side. See ``_connections`` for the rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from akadze._statement import Statement, statement

_BEGIN_WORK = statement("session", "begin_work")

Rows = list[dict[str, Any]]

# What a caller has registered for values of its own is not for ours.
_ADAPTERS = AdaptersMap(psycopg.adapters)


class _AsyncCursor(psycopg.AsyncRawCursor[tuple[Any, ...]]):
    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _Cursor(psycopg.RawCursor[tuple[Any, ...]]):
    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class PsycopgAsyncCaller:
    """psycopg's AsyncConnection, a pool's too."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    async def rows(self, statement: Statement, **parameters: Any) -> Rows:
        # A cursor of our own: the caller's may be of another class, or give rows of another shape. It holds nothing
        # that would have to be closed.
        cursor = _AsyncCursor(self.connection, row_factory=tuple_row)
        await cursor.execute(statement.numbered, [parameters[name] for name in statement.names] or None)
        # In a pipeline the cursor does not know yet whether rows will come.
        return _as_dicts(statement, cursor, await cursor.fetchall()) if statement.returns_rows else []

    async def copy(self, statement: Statement, lines: str) -> None:
        """Send the lines, in COPY's text format, to a COPY FROM STDIN, in the caller's transaction."""
        data = _encoded(self.connection, lines)
        async with _AsyncCursor(self.connection) as cursor, cursor.copy(statement.sql) as copy:
            await copy.write(data)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        idle = self.connection.info.transaction_status is TransactionStatus.IDLE
        if idle and not self.connection.autocommit:
            # Where nothing has begun, transaction() would begin and commit; the caller's transaction stays open.
            await self.rows(_BEGIN_WORK)
        async with self.connection.transaction():
            yield
            if self.connection.info.transaction_status is TransactionStatus.INERROR:
                await self.rows(_BEGIN_WORK)  # raises; the commit of a broken transaction says nothing


class PsycopgSyncCaller:
    """psycopg's Connection, a pool's too."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def rows(self, statement: Statement, **parameters: Any) -> Rows:
        cursor = _Cursor(self.connection, row_factory=tuple_row)
        cursor.execute(statement.numbered, [parameters[name] for name in statement.names] or None)
        # In a pipeline the cursor does not know yet whether rows will come.
        return _as_dicts(statement, cursor, cursor.fetchall()) if statement.returns_rows else []

    def copy(self, statement: Statement, lines: str) -> None:
        """Send the lines, in COPY's text format, to a COPY FROM STDIN, in the caller's transaction."""
        data = _encoded(self.connection, lines)
        with _Cursor(self.connection) as cursor, cursor.copy(statement.sql) as copy:
            copy.write(data)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        idle = self.connection.info.transaction_status is TransactionStatus.IDLE
        if idle and not self.connection.autocommit:
            # Where nothing has begun, transaction() would begin and commit; the caller's transaction stays open.
            self.rows(_BEGIN_WORK)
        with self.connection.transaction():
            yield
            if self.connection.info.transaction_status is TransactionStatus.INERROR:
                self.rows(_BEGIN_WORK)  # raises; the commit of a broken transaction says nothing


def async_copier(caller: object) -> PsycopgAsyncCaller | None:
    """Return the caller if it can copy here and now: not in a pipeline, which has no COPY."""
    if isinstance(caller, PsycopgAsyncCaller) and _outside_pipeline(caller.connection):
        return caller
    return None


def sync_copier(caller: object) -> PsycopgSyncCaller | None:
    """Return the caller if it can copy here and now, as ``async_copier`` does."""
    if isinstance(caller, PsycopgSyncCaller) and _outside_pipeline(caller.connection):
        return caller
    return None


def _outside_pipeline(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    return connection.pgconn.pipeline_status == PipelineStatus.OFF


def _as_dicts(statement: Statement, cursor: _AsyncCursor | _Cursor, rows: list[tuple[Any, ...]]) -> Rows:
    if not rows:
        return []
    if statement.columns is None:
        statement.columns = tuple(column.name for column in cursor.description or ())
    return [dict(zip(statement.columns, row, strict=True)) for row in rows]


def _encoded(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], text: str) -> bytes:
    # Before anything is sent: what the caller's encoding lacks must not break the transaction. ASCII is how psycopg
    # names a client that does not convert.
    encoding = connection.info.encoding
    return text.encode("utf-8" if encoding == "ascii" else encoding)
