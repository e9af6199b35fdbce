"""Callers' connections of packages that need not be installed: asyncpg, psycopg2 and Django.

They are recognised and used without importing them. See ``_connections`` for the rules.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from akadze._savepoints import async_savepoint, savepoint, transaction
from akadze._statement import Statement, statement

_BEGIN_WORK = statement("session", "begin_work")

Rows = list[dict[str, Any]]


class AsyncDriverConnection(Protocol):
    """The shape of asyncpg's connection, for type checkers."""

    async def fetch(self, query: str, /, *args: Any) -> Any: ...

    def transaction(self) -> Any: ...


class DriverConnection(Protocol):
    """The shape of psycopg2's and Django's connections, for type checkers."""

    def cursor(self) -> Any: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class AsyncpgCaller:
    """asyncpg's connection, its pool's too."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def rows(self, statement: Statement, **parameters: Any) -> Rows:
        records = await self.connection.fetch(statement.numbered, *(parameters[name] for name in statement.names))
        return [dict(record.items()) for record in records]

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        # asyncpg opens no savepoint of its own in a transaction that the caller began by a statement.
        return async_savepoint(self) if self.connection.is_in_transaction() else self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield
            # Where an error of the database was swallowed, this raises; the commit would roll back and say nothing.
            await self.rows(_BEGIN_WORK)


class Psycopg2Caller:
    """psycopg2's connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def rows(self, statement: Statement, **parameters: Any) -> Rows:
        # A plain cursor: the caller's factory may give rows of another shape.
        plain = sys.modules["psycopg2.extensions"].cursor
        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(statement.pyformat, parameters)
            return _as_dicts(cursor)

    def savepoint(self) -> AbstractContextManager[Any]:
        # In autocommit outside a transaction there is none to keep usable: one of its own undoes what a hook refuses.
        alone = self.connection.autocommit and self.connection.info.transaction_status == 0
        return transaction(self) if alone else savepoint(self)


class DjangoCaller:
    """Django's connection (``connection``, ``connections[alias]``), on psycopg or psycopg2."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def rows(self, statement: Statement, **parameters: Any) -> Rows:
        # Django's own cursor: its execute wrappers, query log and check for a broken transaction go on working.
        with self.connection.cursor() as cursor:
            cursor.execute(statement.pyformat, parameters)
            return _as_dicts(cursor)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        from django.db import transaction  # type: ignore[import-not-found, import-untyped, unused-ignore]  # it is Django's connection

        with transaction.atomic(using=self.connection.alias):
            yield
            self.rows(_BEGIN_WORK)


def is_asyncpg(given: Any) -> bool:
    return _is_of(given, "asyncpg", "Connection") or _is_of(given, "asyncpg", "PoolConnectionProxy")


def is_psycopg2(given: Any) -> bool:
    return _is_of(given, "psycopg2", "connection")


def is_django(given: Any) -> bool:
    # django.db.connection is a proxy without a base class of its own; what it stands for answers.
    return hasattr(given, "ensure_connection") and isinstance(getattr(given, "vendor", None), str)


def is_driver_pool(given: Any) -> bool:
    return _is_of(given, "asyncpg", "Pool") or _is_of(given, "psycopg2", "AbstractConnectionPool")


def _is_of(given: Any, package: str, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.split(".")[0] == package for base in type(given).__mro__)


def _as_dicts(cursor: Any) -> Rows:
    if cursor.description is None:
        return []
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
