"""Connections that a worker holds for itself, beside the pool."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from akadze._connections import async_caller, driver_connection
from akadze._sqlstates import first_line
from akadze._statement import statement
from akadze._urls import libpq_url, sqlalchemy_url, without_password
from akadze._worker.wire import Wire
from akadze.errors import AkadzeError

_BACKEND_PID = statement("session", "backend_pid")
_FIND_DATABASE = statement("session", "find_database")
_ISOLATE_SESSION = statement("session", "isolate_session")
_TUNE_SESSION = statement("session", "tune_session")
_USE_UTF8 = statement("session", "use_utf8")

Raw = psycopg.AsyncConnection[Any]

#: The driver's connection below each held one.
_BELOW: WeakKeyDictionary[AsyncConnection, Any] = WeakKeyDictionary()


async def open_held(engine: AsyncEngine) -> AsyncConnection:
    """Open a connection as the engine opens its own, beside its pool: it takes nobody's place and waits for none."""
    connection = await _beside_pool(engine).connect()
    try:
        connection = await connection.execution_options(isolation_level="READ COMMITTED")
        _BELOW[connection] = await connection.run_sync(_detach)
        await connection.execute(_USE_UTF8.clause)
        await connection.commit()
        return connection
    except BaseException:
        await close_held(connection)
        raise


def _beside_pool(engine: AsyncEngine) -> AsyncEngine:
    # The same dialect, and a pool that is empty but has the same creator and events. Errors show no parameters,
    # whatever the engine does: they are arguments and results of jobs.
    below = engine.sync_engine
    return AsyncEngine(Engine(below.pool.recreate(), below.dialect, below.url, hide_parameters=True))


def _detach(connection: Connection) -> Any:
    below = connection.connection.dbapi_connection
    connection.detach()
    return below


def psycopg_engine(engine: AsyncEngine) -> AsyncEngine:
    """Return the engine itself, or for another driver's one of the same database with psycopg."""
    if _is_psycopg(engine):
        return engine
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return create_async_engine(
        sqlalchemy_url(url), poolclass=NullPool, connect_args={"prepare_threshold": None, "client_encoding": "utf8"}
    )


def _is_psycopg(engine: AsyncEngine) -> bool:
    return engine.dialect.driver in ("psycopg", "psycopg_async")


async def check_database(engine: AsyncEngine, held: HeldRaw) -> None:
    """Raise AkadzeError if another driver's engine connects to another database than its URL names, as ``held`` did."""
    if _is_psycopg(engine):
        return
    connection = await open_held(engine)
    try:
        theirs = (await async_caller(connection, reading=True).rows(_FIND_DATABASE))[0]["database"]
    finally:
        await close_held(connection)
    [(ours,)] = await held.rows(_FIND_DATABASE)
    if theirs != ours:
        raise AkadzeError(
            f"the engine of the app connects to the database {theirs!r}, but its URL names {ours!r}, which the "
            "worker's own connections of psycopg would use: put what connect_args or a creator says into the URL"
        )


async def close_held(connection: AsyncConnection) -> None:
    """Close a connection of open_held for good, whatever has happened to it.

    SQLAlchemy does not close a detached connection that it gives up, after a cancelled statement for instance.
    """
    below = _BELOW.pop(connection, None)
    try:
        if below is not None:
            await connection.run_sync(lambda above: above.dialect.do_terminate(below))
    finally:
        if not connection.closed:  # by a hook
            await connection.invalidate()
            await connection.close()


def is_spent(connection: AsyncConnection) -> bool:
    """Tell whether a connection of open_held was given up or closed by a hook, or has another one of the driver now."""
    if connection.closed or connection.invalidated or connection.sync_connection is None:
        return True
    return connection in _BELOW and connection.sync_connection.connection.dbapi_connection is not _BELOW[connection]


class HeldRaw:
    """A psycopg connection in autocommit, held for one duty.

    ``direct`` tells that the server is met directly, not through a pooler in transaction mode: then statements are
    prepared and settings of the session last.
    """

    def __init__(self, raw: Raw, owner: AsyncConnection | None) -> None:
        self.raw = raw
        #: SQLAlchemy's connection around it, where it was opened through the engine.
        self.owner = owner
        self.direct = False
        self.wire = Wire(raw, prepares=False)

    @classmethod
    async def open(cls, engine: AsyncEngine, *, url: str | None = None) -> HeldRaw:
        """Open one through the engine, or with psycopg itself for another driver's engine or a URL of its own."""
        if url is None and _is_psycopg(engine):
            owner = await open_held(engine)
            raw = driver_connection(owner)
            if raw is not None:
                held = cls(raw, owner)
                await held._prepare()
                return held
            await close_held(owner)
        dsn = libpq_url(url if url is not None else engine.url.render_as_string(hide_password=False))
        raw = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=None, client_encoding="utf8"
        )
        held = cls(raw, None)
        await held._prepare()
        return held

    @classmethod
    async def open_shared(cls, engine: AsyncEngine) -> HeldRaw:
        """Open one whose transactions are begun and ended on ``owner``, which hooks get as their connection."""
        held = await cls.open(psycopg_engine(engine))
        # Where psycopg has prepared statements of its own, it deallocates all there are after any rollback.
        held.raw.prepare_threshold = None
        try:
            await held.raw.set_autocommit(False)
        except BaseException:
            await held.close()
            raise
        return held

    async def _prepare(self) -> None:
        try:
            await self.raw.rollback()
            await self.raw.set_autocommit(True)
            self.raw.prepare_threshold = None
            rows = await self.rows(_BACKEND_PID)
            self.direct = rows[0][0] == self.raw.info.backend_pid
            if self.direct:
                await self.rows(_ISOLATE_SESSION)
                await self.rows(_TUNE_SESSION, local=False)
                # Prepared at the first use: the same few statements run for the life of the connection.
                self.raw.prepare_threshold = 0
                self.wire = Wire(self.raw, prepares=True)
        except BaseException:
            await self.close()
            raise

    async def execute(self, statement: Any, **parameters: Any) -> psycopg.AsyncRawCursor[Any]:
        cursor = psycopg.AsyncRawCursor(self.raw)
        return await cursor.execute(
            statement.numbered, [parameters[name] for name in statement.names] or None, binary=True
        )

    async def rows(self, statement: Any, **parameters: Any) -> list[Any]:
        cursor = await self.execute(statement, **parameters)
        return await cursor.fetchall() if cursor.description else []

    async def close(self) -> None:
        try:
            await self.raw.close()
        finally:
            if self.owner is not None:
                await close_held(self.owner)


def listen_url() -> str | None:
    """Return the URL that the listener connects to, where it is another one than the engine's.

    Raises AkadzeError for a malformed one; it never shows a password.
    """
    url = os.environ.get("AKADZE_LISTEN_URL")
    if not url:
        return None
    try:
        conninfo_to_dict(libpq_url(url))
    except (AkadzeError, psycopg.ProgrammingError) as error:
        raise AkadzeError(f"AKADZE_LISTEN_URL cannot be used: {without_password(first_line(error))}") from None
    return url
