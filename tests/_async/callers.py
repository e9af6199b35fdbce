"""The kinds of session that enqueue takes, each opened in a transaction of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import psycopg_pool
from psycopg import AsyncClientCursor, AsyncConnection, AsyncPipeline, AsyncRawCursor, AsyncRawServerCursor
from psycopg.rows import dict_row, scalar_row
from psycopg.types.json import set_json_dumps, set_json_loads
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

#: Settings that a session may have and that change how a server reads names and writes values.
ODD_SETTINGS = {
    "search_path": "elsewhere",
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "0",
}


class Alchemy:
    """A connection or session of SQLAlchemy."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def execute(self, statement: str) -> list[Any]:
        result = await self.session.execute(text(statement), execution_options={"stream_results": False})
        return [tuple(row) for row in result] if result.returns_rows else []

    async def commit(self) -> None:
        await self.session.commit()

    async def rollback(self) -> None:
        await self.session.rollback()

    def savepoint(self) -> Any:
        return self.session.begin_nested()


class Psycopg:
    """A connection of psycopg, with whatever factories it has."""

    def __init__(
        self, session: AsyncConnection[Any], *, by_statements: bool = False, pipeline: AsyncPipeline | None = None
    ) -> None:
        self.session = session
        self._by_statements = by_statements
        self._pipeline = pipeline

    async def execute(self, statement: str) -> list[Any]:
        cursor = await self.session.execute(statement)  # type: ignore[arg-type]  # a test's own text
        rows = await cursor.fetchall() if statement.startswith("select") else []
        shapes = {dict: lambda row: tuple(row.values()), tuple: lambda row: row}
        return [shapes.get(type(row), lambda row: (row,))(row) for row in rows]

    async def commit(self) -> None:
        if self._by_statements:
            await self.session.execute("commit")
            await self.session.execute("begin")
        else:
            await self.session.commit()

    async def rollback(self) -> None:
        if self._by_statements:
            await self.session.execute("rollback")
            await self.session.execute("begin")
        else:
            if self._pipeline is not None:
                with suppress(psycopg.Error):  # that of the statement after which the server skipped the others
                    await self._pipeline.sync()
            await self.session.rollback()

    def savepoint(self) -> Any:
        return self.session.transaction()


Caller = Alchemy | Psycopg


def alchemy_connection(settings: Mapping[str, str] | None = None, **options: Any) -> Callable[[Any, str], Any]:
    @asynccontextmanager
    async def opened(engine: Any, url: str) -> AsyncIterator[Caller]:
        async with engine.execution_options(**options).connect() as connection:
            for name, value in (settings or {}).items():
                await connection.execute(text(f"set {name} = '{value}'"))
            await connection.commit()
            await connection.begin()
            yield Again(connection)

    return opened


class Again(Alchemy):
    """A connection does not begin by itself where enqueue asks for a transaction: begin the next one."""

    async def commit(self) -> None:
        await super().commit()
        await self.session.begin()

    async def rollback(self) -> None:
        await super().rollback()
        await self.session.begin()


class Streaming(Again):
    """SQLAlchemy would declare its own savepoints as cursors here: open them by statements."""

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        await self.execute("savepoint own")
        try:
            yield
        except BaseException:
            await self.execute("rollback to savepoint own")
            raise
        await self.execute("release savepoint own")


@asynccontextmanager
async def alchemy_streaming(engine: Any, url: str) -> AsyncIterator[Caller]:
    async with engine.execution_options(stream_results=True).connect() as connection:
        await connection.begin()
        yield Streaming(connection)


@asynccontextmanager
async def alchemy_session(engine: Any, url: str) -> AsyncIterator[Caller]:
    async with AsyncSession(engine) as session:
        yield Alchemy(session)


@asynccontextmanager
async def alchemy_scoped_session(engine: Any, url: str) -> AsyncIterator[Caller]:
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "one request")
    yield Alchemy(scoped)
    await scoped.remove()


def psycopg_connection(options: str = "", **settings: Any) -> Callable[[Any, str], Any]:
    """``settings`` are attributes of the connection."""

    @asynccontextmanager
    async def opened(engine: Any, url: str) -> AsyncIterator[Caller]:
        async with await AsyncConnection.connect(url, options=options) as connection:
            for name, value in settings.items():
                setattr(connection, name, value)
            yield Psycopg(connection)

    return opened


@asynccontextmanager
async def psycopg_repeatable_read(engine: Any, url: str) -> AsyncIterator[Caller]:
    async with await AsyncConnection.connect(url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        yield Psycopg(connection)


@asynccontextmanager
async def psycopg_by_statements(engine: Any, url: str) -> AsyncIterator[Caller]:
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("begin")
        yield Psycopg(connection, by_statements=True)


@asynccontextmanager
async def psycopg_pipeline(engine: Any, url: str) -> AsyncIterator[Caller]:
    async with await AsyncConnection.connect(url) as connection, connection.pipeline() as pipeline:
        yield Psycopg(connection, pipeline=pipeline)


@asynccontextmanager
async def psycopg_of_pool(engine: Any, url: str) -> AsyncIterator[Caller]:
    pool = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=1, open=False)
    async with pool, pool.connection() as connection:
        yield Psycopg(connection)


@asynccontextmanager
async def psycopg_other_json(engine: Any, url: str) -> AsyncIterator[Caller]:
    def not_ours(value: Any) -> Any:
        raise AssertionError("the JSON functions of the caller are not for jobs")

    async with await AsyncConnection.connect(url) as connection:
        set_json_dumps(not_ours, connection)
        set_json_loads(not_ours, connection)
        yield Psycopg(connection)


KINDS: dict[str, Callable[[Any, str], Any]] = {
    "sqlalchemy connection": alchemy_connection(),
    "sqlalchemy connection that streams": alchemy_streaming,
    "sqlalchemy connection, serializable": alchemy_connection(isolation_level="SERIALIZABLE"),
    "sqlalchemy connection with odd settings": alchemy_connection(ODD_SETTINGS),
    "sqlalchemy session": alchemy_session,
    "sqlalchemy scoped session": alchemy_scoped_session,
    "psycopg": psycopg_connection(),
    "psycopg with begin and commit": psycopg_by_statements,
    "psycopg with dict rows": psycopg_connection(row_factory=dict_row),
    "psycopg with scalar rows": psycopg_connection(row_factory=scalar_row),
    "psycopg with client cursors": psycopg_connection(cursor_factory=AsyncClientCursor),
    "psycopg with raw cursors": psycopg_connection(
        cursor_factory=AsyncRawCursor, server_cursor_factory=AsyncRawServerCursor
    ),
    "psycopg that prepares at once": psycopg_connection(prepare_threshold=0),
    "psycopg, repeatable read": psycopg_repeatable_read,
    "psycopg with odd settings": psycopg_connection(
        options=" ".join(f"-c {name}={value}" for name, value in ODD_SETTINGS.items())
    ),
    "psycopg in a pipeline": psycopg_pipeline,
    "psycopg of a pool": psycopg_of_pool,
    "psycopg with other JSON functions": psycopg_other_json,
}
