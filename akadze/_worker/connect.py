"""Connections that a worker holds for itself, beside the pool."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from akadze._connections import driver_connection
from akadze._statement import statement
from akadze._urls import libpq_url

_BACKEND_PID = statement("session", "backend_pid")
_ISOLATE_SESSION = statement("session", "isolate_session")
_TUNE_SESSION = statement("session", "tune_session")

Raw = psycopg.AsyncConnection[Any]


async def open_held(engine: AsyncEngine) -> AsyncConnection:
    """Open a connection as the engine opens its own, and take it out of the pool, so that it takes nobody's place."""
    connection = await engine.connect()
    try:
        connection = await connection.execution_options(isolation_level="READ COMMITTED")
        await connection.run_sync(lambda below: below.detach())
        return connection
    except BaseException:
        await connection.close()
        raise


class HeldRaw:
    """A psycopg connection in autocommit, held for one duty.

    ``direct`` tells that the server is met directly, not through a pooler in transaction mode: then statements are
    prepared and settings of the session last.
    """

    def __init__(self, raw: Raw, owner: AsyncConnection | None) -> None:
        self.raw = raw
        self._owner = owner
        self.direct = False

    @classmethod
    async def open(cls, engine: AsyncEngine, *, url: str | None = None) -> HeldRaw:
        """Open one through the engine, or with psycopg itself for another driver's engine or a URL of its own."""
        if url is None and engine.dialect.driver in ("psycopg", "psycopg_async"):
            owner = await open_held(engine)
            raw = driver_connection(owner)
            if raw is not None:
                held = cls(raw, owner)
                await held._prepare()
                return held
            await owner.close()
        dsn = libpq_url(url if url is not None else engine.url.render_as_string(hide_password=False))
        held = cls(await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None), None)
        await held._prepare()
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
            if self._owner is not None:
                await self._owner.invalidate()
                await self._owner.close()


def listen_url() -> str | None:
    """Return the URL that the listener connects to, where it is another one than the engine's."""
    return os.environ.get("AKADZE_LISTEN_URL") or None
