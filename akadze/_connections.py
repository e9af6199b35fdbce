"""Callers' connections: one small adapter for each kind, both colours side by side.

A caller's connection is used as it is: akadze executes on the object that it was given, never on what lies below it,
never commits or rolls back, and opens a savepoint only around a user's hook. Rows come back as dicts, whatever row or
cursor factory the connection has; JSON crosses as text both ways.

To accept another kind of connection: write its adapter here, in ``_psycopg`` or in ``_drivers``, and recognise it in
``async_caller`` or ``sync_caller`` and in the two functions that tell its colour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from inspect import iscoroutine
from typing import Any, Protocol, cast

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from akadze._drivers import (
    AsyncpgCaller,
    DjangoCaller,
    Psycopg2Caller,
    is_asyncpg,
    is_django,
    is_driver_pool,
    is_psycopg2,
)
from akadze._psycopg import PsycopgAsyncCaller, PsycopgSyncCaller
from akadze._savepoints import (
    async_savepoint,
    async_savepoint_in_autocommit,
    savepoint,
    savepoint_in_autocommit,
)
from akadze._statement import Statement, statement
from akadze.errors import AkadzeError, EnqueueError

Rows = list[dict[str, Any]]

# A caller's stream_results would turn an insert into a cursor declaration, and yield_per turns that on.
_WHOLE = {"stream_results": False, "yield_per": None}

_BEGIN_WORK = statement("session", "begin_work")


class AsyncCaller(Protocol):
    """A connection or session of the caller that is awaited."""

    connection: Any

    async def rows(self, statement: Statement, **parameters: Any) -> Rows:
        """Execute on the caller's connection, in its transaction, and return all rows."""

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """Open a savepoint, released at a clean exit and rolled back on an error."""


class SyncCaller(Protocol):
    """A connection or session of the caller that blocks."""

    connection: Any

    def rows(self, statement: Statement, **parameters: Any) -> Rows:
        """Execute on the caller's connection, in its transaction, and return all rows."""

    def savepoint(self) -> AbstractContextManager[Any]:
        """Open a savepoint, released at a clean exit and rolled back on an error."""


class _AlchemyAsync:
    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def rows(self, statement: Statement, **parameters: Any) -> Rows:
        result = await self.connection.execute(statement.clause, parameters, execution_options=_WHOLE)
        return [dict(row) for row in result.mappings()] if statement.returns_rows else []

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        below = self.connection.sync_connection
        if below is not None and autocommits(below):
            block: AbstractAsyncContextManager[Any] = async_savepoint_in_autocommit(self)
        elif below is not None and _streams(below):
            block = async_savepoint(self)
        else:
            block = self.connection.begin_nested()
        async with block:
            yield
            await self.rows(_BEGIN_WORK)  # raises in a broken transaction: SQLAlchemy would not return to the savepoint


class _AlchemySync:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def rows(self, statement: Statement, **parameters: Any) -> Rows:
        result = self.connection.execute(statement.clause, parameters, execution_options=_WHOLE)
        return [dict(row) for row in result.mappings()] if statement.returns_rows else []

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        if autocommits(self.connection):
            block: AbstractContextManager[Any] = savepoint_in_autocommit(self)
        elif _streams(self.connection):
            block = savepoint(self)
        else:
            block = self.connection.begin_nested()
        with block:
            yield
            self.rows(_BEGIN_WORK)  # raises in a broken transaction: SQLAlchemy would not return to the savepoint


class _AlchemyAsyncSession:
    def __init__(self, session: AsyncSession) -> None:
        self.connection = session

    async def rows(self, statement: Statement, **parameters: Any) -> Rows:
        # Through the class: subclasses (SQLModel's) deprecate execute() in favour of their own verb.
        result = await AsyncSession.execute(self.connection, statement.clause, parameters, execution_options=_WHOLE)
        return [dict(row) for row in result.mappings()] if statement.returns_rows else []

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        below = (await self.connection.connection()).sync_connection
        alone = below is not None and autocommits(below)
        with _whole(below):
            async with async_savepoint_in_autocommit(self) if alone else self.connection.begin_nested():
                yield
                if alone:
                    await self.connection.flush()  # begin_nested() does so by itself
                await self.rows(_BEGIN_WORK)


class _AlchemySyncSession:
    def __init__(self, session: Session) -> None:
        self.connection = session

    def rows(self, statement: Statement, **parameters: Any) -> Rows:
        result = Session.execute(self.connection, statement.clause, parameters, execution_options=_WHOLE)
        return [dict(row) for row in result.mappings()] if statement.returns_rows else []

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        below = self.connection.connection()
        alone = autocommits(below)
        with _whole(below), savepoint_in_autocommit(self) if alone else self.connection.begin_nested():
            yield
            if alone:
                self.connection.flush()  # begin_nested() does so by itself
            self.rows(_BEGIN_WORK)


def autocommits(connection: Connection) -> bool:
    """Tell whether each statement on an SQLAlchemy connection commits at once, whatever it thinks of a transaction."""
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _streams(connection: Connection) -> bool:
    # SQLAlchemy then declares a cursor for its savepoint, too, which the server refuses.
    options = connection.get_execution_options()
    return any(options.get(name) for name in _WHOLE)


@contextmanager
def _whole(connection: Connection | None) -> Iterator[None]:
    """Let a session's connection stream nothing meanwhile: only the session's own savepoint takes its objects back."""
    options = connection.get_execution_options() if connection is not None else {}
    theirs = {name: options[name] for name in _WHOLE if options.get(name)}
    if connection is None or not theirs:
        yield
        return
    connection.execution_options(**{name: _WHOLE[name] for name in theirs})
    try:
        yield
    finally:
        connection.execution_options(**theirs)


def async_caller(session: Any, *, error: type[AkadzeError] = EnqueueError, reading: bool = False) -> AsyncCaller:
    """Return the adapter of an async connection or session.

    Raises ``error`` for anything else, for an SQLAlchemy connection that is not open yet, and for one outside a
    transaction unless ``reading``: what it wrote there would be rolled back in silence.
    """
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        _check_dialect(session.sync_session, error)
        return _AlchemyAsyncSession(session)
    if isinstance(session, AsyncConnection):
        _check_dialect(session, error)
        if session.sync_connection is None:
            raise error(_NOT_STARTED)
        if not reading and not session.in_transaction():
            raise error(_NO_TRANSACTION.format(begin="async with engine.begin() as connection"))
        return _AlchemyAsync(session)
    if isinstance(session, psycopg.AsyncConnection):
        return PsycopgAsyncCaller(session)
    if is_asyncpg(session):
        return AsyncpgCaller(session)
    raise error(_refusal(session, wanted="async", reading=reading))


def sync_caller(session: Any, *, error: type[AkadzeError] = EnqueueError, reading: bool = False) -> SyncCaller:
    """Return the adapter of a blocking connection or session; raises as ``async_caller`` does."""
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session):
        _check_dialect(session, error)
        return _AlchemySyncSession(session)
    if isinstance(session, Connection):
        _check_dialect(session, error)
        if not reading and not session.in_transaction():
            raise error(_NO_TRANSACTION.format(begin="with engine.begin() as connection"))
        return _AlchemySync(session)
    if isinstance(session, psycopg.Connection):
        return PsycopgSyncCaller(session)
    if is_psycopg2(session):
        return Psycopg2Caller(session)
    if is_django(session):
        if session.vendor != "postgresql":
            raise error(_OTHER_DATABASE.format(kind=session.vendor))
        return DjangoCaller(session)
    raise error(_refusal(session, wanted="sync", reading=reading))


def is_async_session(session: Any) -> bool:
    """Tell the colour of a session that enqueue takes."""
    return isinstance(
        session, AsyncConnection | AsyncSession | async_scoped_session | psycopg.AsyncConnection
    ) or is_asyncpg(session)


def is_sync_session(session: Any) -> bool:
    return (
        isinstance(session, Connection | Session | scoped_session | psycopg.Connection)
        or is_psycopg2(session)
        or is_django(session)
    )


@asynccontextmanager
async def async_reading(source: Any) -> AsyncIterator[AsyncCaller]:
    """Yield a caller to read with: on a connection of its own for an engine or a pool, else on the one given."""
    if isinstance(source, AsyncEngine):
        async with source.connect() as connection:
            yield async_caller(connection, error=AkadzeError, reading=True)
    elif _is_pool(source, "AsyncConnectionPool"):
        async with source.connection() as connection:
            yield async_caller(connection, error=AkadzeError, reading=True)
    else:
        yield async_caller(source, error=AkadzeError, reading=True)


@contextmanager
def sync_reading(source: Any) -> Iterator[SyncCaller]:
    """Yield a caller to read with: on a connection of its own for an engine or a pool, else on the one given."""
    if isinstance(source, Engine):
        with source.connect() as connection:
            yield sync_caller(connection, error=AkadzeError, reading=True)
    elif _is_pool(source, "ConnectionPool"):
        with source.connection() as connection:
            yield sync_caller(connection, error=AkadzeError, reading=True)
    else:
        yield sync_caller(source, error=AkadzeError, reading=True)


_NO_TRANSACTION = (
    "the SQLAlchemy connection is not in a transaction, so what is written on it would be lost: use {begin}, "
    "or begin() on the connection first"
)

_NOT_STARTED = (
    "the SQLAlchemy AsyncConnection has not been started: await it, or use async with (async with engine.begin() as "
    "connection), before it is passed here"
)

_OTHER_DATABASE = (
    "the session belongs to a {kind} database: akadze keeps its jobs in PostgreSQL, pass a session of that"
)

_TAKEN = {
    "async": "an SQLAlchemy AsyncConnection or AsyncSession, or a connection of psycopg (async) or asyncpg",
    "sync": "an SQLAlchemy Connection or Session, Django's connection, or a connection of psycopg or psycopg2",
}

#: What calls that read take beside these.
_READ_FROM = {
    "async": "an AsyncEngine like app.engine, an AsyncConnectionPool of psycopg, ",
    "sync": "an Engine like app.sync_engine, a ConnectionPool of psycopg, ",
}


def _refusal(given: Any, *, wanted: str, reading: bool = False) -> str:
    taken = (_READ_FROM[wanted] if reading else "") + _TAKEN[wanted]
    pooled = isinstance(given, AsyncEngine | Engine) or _is_any_pool(given)
    if pooled and reading and wanted == "sync":
        advice = "it is an async one: await the call of the same name in akadze, or pass a blocking one"
    elif pooled and reading:
        advice = "it is a blocking one: use the call of the same name in akadze.sync, or pass an async one"
    elif _is_any_pool(given):
        advice = "take a connection from the pool and pass that, so that this is part of your transaction"
    elif pooled:
        advice = "open a connection with engine.begin() and pass that, so that this is part of your transaction"
    elif wanted == "sync" and is_async_session(given):
        advice = "it is an async one: await the call of the same name in akadze, or pass " + taken
    elif wanted == "async" and is_sync_session(given):
        advice = "it is a blocking one: use the call of the same name in akadze.sync, or pass " + taken
    else:
        advice = _to_open(given) + "pass " + taken
    return f"{_named(given)} cannot be used as a session here: {advice}"


def refuse_session(session: Any) -> EnqueueError:
    """Return the error for an object that is a session of neither colour."""
    if isinstance(session, AsyncEngine | Engine) or _is_any_pool(session):
        return EnqueueError(_refusal(session, wanted="sync"))
    named = _named(session)
    taken = f"{_to_open(session)}pass {_TAKEN['async']}, or {_TAKEN['sync']}"
    return EnqueueError(f"{named} cannot be used as a session here: {taken}")


def _to_open(given: Any) -> str:
    # A coroutine, or what engine.begin() returns: the await or the with is forgotten. Connections can execute.
    kind = type(given)
    if iscoroutine(given):
        return "await it and pass what that gives, or "
    if hasattr(kind, "execute") or hasattr(kind, "cursor"):
        return ""
    if hasattr(kind, "__aenter__"):
        return "enter it (async with ...) and pass what that gives, or "
    return "enter it (with ...) and pass what that gives, or " if hasattr(kind, "__enter__") else ""


def _named(given: Any) -> str:
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__module__}.{given.__qualname__}"
    kind = type(given)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _is_pool(given: Any, name: str) -> bool:
    # psycopg_pool need not be imported to know its classes.
    return any(base.__name__ == name and base.__module__.startswith("psycopg_pool") for base in type(given).__mro__)


def _is_any_pool(given: Any) -> bool:
    return _is_pool(given, "AsyncConnectionPool") or _is_pool(given, "ConnectionPool") or is_driver_pool(given)


def _check_dialect(given: AsyncConnection | Connection | Session, error: type[AkadzeError]) -> None:
    try:
        dialect = given.get_bind().dialect if isinstance(given, Session) else given.dialect
    except Exception:  # a session that is bound to nothing: its first statement says so
        return
    if dialect.name != "postgresql":
        raise error(_OTHER_DATABASE.format(kind=dialect.name))


def driver_connection(connection: AsyncConnection) -> psycopg.AsyncConnection[Any] | None:
    """Return the psycopg connection below a connection of the worker's own, None for another driver."""
    # Not the pool's view of it: that is empty once the connection is detached.
    below = cast(Any, connection.sync_connection).connection.dbapi_connection
    raw = connection.dialect.get_driver_connection(below)
    return raw if isinstance(raw, psycopg.AsyncConnection) else None
