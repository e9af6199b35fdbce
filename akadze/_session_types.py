"""What type checkers let pass as a session or as a source to read from; ``_connections`` recognises it at run time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from akadze._drivers import AsyncDriverConnection, DriverConnection

__all__ = ["AnyAsyncSession", "AnyAsyncSource", "AnySyncSession", "AnySyncSource"]


class AsyncPool(Protocol):
    """The shape of psycopg's pool of async connections."""

    def connection(self) -> AbstractAsyncContextManager[Any]: ...


class SyncPool(Protocol):
    """The shape of psycopg's pool of blocking connections."""

    def connection(self) -> AbstractContextManager[Any]: ...


AnyAsyncSession = (
    AsyncConnection | AsyncSession | async_scoped_session[Any] | psycopg.AsyncConnection[Any] | AsyncDriverConnection
)
AnySyncSession = Connection | Session | scoped_session[Any] | psycopg.Connection[Any] | DriverConnection
AnyAsyncSource = AsyncEngine | AsyncPool | AnyAsyncSession
AnySyncSource = Engine | SyncPool | AnySyncSession
