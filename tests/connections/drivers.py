"""Connections of the drivers themselves: psycopg, psycopg2 and asyncpg."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.extensions
import psycopg2.extras
import psycopg2.pool
import psycopg_pool
from psycopg.adapt import Dumper
from psycopg.types.json import set_json_dumps, set_json_loads

from tests.connections.caller import AsyncCaller, Caller, Row, SyncCaller

Opener = Callable[[str], AbstractAsyncContextManager[Caller]]

#: Settings that a session may have and that change how a server reads names and writes values.
ODD_SETTINGS = {
    "search_path": "elsewhere",
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "0",
}


def not_ours(value: Any) -> Any:
    raise AssertionError("what the caller has set for values of its own is not for jobs")


class Shout(Dumper):
    """A caller's way to write its own strings."""

    def dump(self, obj: str) -> bytes:
        return obj.upper().encode()


class AsyncpgCaller(AsyncCaller):
    """asyncpg commits by itself outside a transaction, so one is begun again after each."""

    def __init__(self, session: Any, **options: Any) -> None:
        super().__init__(session)
        self._options = options

    async def begin(self) -> None:
        self._transaction = self.session.transaction(**self._options)
        await self._transaction.start()

    async def _execute(self, statement: str) -> list[Row]:
        return [tuple(record.values()) for record in await self.session.fetch(statement)]

    async def commit(self) -> None:
        await self._transaction.commit()
        await self.begin()

    async def rollback(self) -> None:
        await self._transaction.rollback()
        await self.begin()

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        block: AbstractAsyncContextManager[None] = self.session.transaction()
        return block


class AsyncpgByStatements(AsyncpgCaller):
    """A caller that writes its own begin and commit, which asyncpg does not follow."""

    async def begin(self) -> None:
        await self.session.execute("begin")

    async def commit(self) -> None:
        await self.session.execute("commit")
        await self.begin()

    async def rollback(self) -> None:
        await self.session.execute("rollback")
        await self.begin()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        await self.session.execute("savepoint mine")
        try:
            yield
        except BaseException:
            await self.session.execute("rollback to savepoint mine")
            raise
        await self.session.execute("release savepoint mine")


class PsycopgAsyncCaller(AsyncCaller):
    kept = ("row_factory", "cursor_factory", "server_cursor_factory", "autocommit", "isolation_level")

    async def _execute(self, statement: str) -> list[Row]:
        cursor = await self.session.execute(statement)
        return await cursor.fetchall() if cursor.description else []

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        block: AbstractAsyncContextManager[None] = self.session.transaction()
        return block


class PsycopgCaller(SyncCaller):
    kept = PsycopgAsyncCaller.kept

    def _execute(self, statement: str) -> list[Row]:
        cursor = self.session.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def _savepoint(self) -> Any:
        return self.session.transaction()


class Psycopg2Caller(SyncCaller):
    kept = ("cursor_factory", "autocommit", "isolation_level", "readonly", "deferrable")

    def _execute(self, statement: str) -> list[Row]:
        with self.session.cursor() as cursor:
            cursor.execute(statement)
            if cursor.description is None:
                return []
            return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in cursor.fetchall()]

    @contextmanager
    def _savepoint(self) -> Any:
        self._execute("savepoint mine")
        try:
            yield
        except BaseException:
            self._execute("rollback to savepoint mine")
            raise
        self._execute("release savepoint mine")


class Psycopg2ByStatements(Psycopg2Caller):
    """A connection in autocommit whose caller writes its own begin and commit."""

    async def commit(self) -> None:
        self._execute("commit")
        self._execute("begin")

    async def rollback(self) -> None:
        self._execute("rollback")
        self._execute("begin")


def of_asyncpg(
    kind: type[AsyncpgCaller] = AsyncpgCaller, *, settings: Mapping[str, str] | None = None, **options: Any
) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        connection = await asyncpg.connect(url, server_settings=dict(settings or {}))
        caller = kind(connection, **options)
        await caller.begin()
        yield caller
        await connection.close()

    return opened


@asynccontextmanager
async def asyncpg_of_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        caller = AsyncpgCaller(connection)
        await caller.begin()
        yield caller
        await caller.session.execute("rollback")


@asynccontextmanager
async def asyncpg_with_codecs(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=not_ours, decoder=not_ours)
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
    caller = AsyncpgCaller(connection)
    await caller.begin()
    yield caller
    await connection.close()


@asynccontextmanager
async def psycopg_with_dumpers(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        connection.adapters.register_dumper(str, Shout)
        set_json_dumps(not_ours, connection)
        set_json_loads(not_ours, connection)
        yield PsycopgAsyncCaller(connection)


@asynccontextmanager
async def psycopg_of_pool_with_dumpers(url: str) -> AsyncIterator[Caller]:
    def configure(connection: psycopg.Connection) -> None:
        connection.adapters.register_dumper(str, Shout)
        set_json_dumps(not_ours, connection)
        set_json_loads(not_ours, connection)

    pool = psycopg_pool.ConnectionPool(url, min_size=1, max_size=1, open=False, configure=configure)
    with pool, pool.connection() as connection:
        yield PsycopgCaller(connection)


@asynccontextmanager
async def asyncpg_in_autocommit(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    yield AsyncpgCaller(connection)
    await connection.close()


@asynccontextmanager
async def psycopg_async_in_autocommit(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield PsycopgAsyncCaller(connection)


@asynccontextmanager
async def psycopg_in_autocommit(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield PsycopgCaller(connection)


@asynccontextmanager
async def psycopg2_in_autocommit(url: str) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    yield Psycopg2Caller(connection)
    connection.close()


def of_psycopg2(settings: Mapping[str, str] | None = None, **options: Any) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        shown = " ".join(f"-c {name}={value}" for name, value in (settings or {}).items())
        connection = psycopg2.connect(url, options=shown, **options)
        yield Psycopg2Caller(connection)
        connection.close()

    return opened


@asynccontextmanager
async def psycopg2_by_statements(url: str) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    caller = Psycopg2ByStatements(connection)
    await caller.execute("begin")
    yield caller
    connection.close()


@asynccontextmanager
async def psycopg2_of_pool(url: str) -> AsyncIterator[Caller]:
    pool = psycopg2.pool.ThreadedConnectionPool(1, 1, url, connection_factory=psycopg2.extras.LoggingConnection)
    connection = pool.getconn()
    connection.initialize(logging.getLogger(__name__))
    yield Psycopg2Caller(connection)
    pool.putconn(connection)
    pool.closeall()


@asynccontextmanager
async def psycopg2_serializable(url: str) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(url)
    connection.set_session(isolation_level="SERIALIZABLE")
    psycopg2.extras.register_default_json(connection, loads=not_ours)
    psycopg2.extras.register_default_jsonb(connection, loads=not_ours)
    yield Psycopg2Caller(connection)
    connection.close()
