"""The fixtures of the tests of claims and of races."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import psycopg
import pytest

from tests.claims.clients import Client, Watcher
from tests.claims.line import Line

Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def connect(anyio_backend: str, database_url: str) -> AsyncIterator[Connect]:
    """Open a connection to steer by hand; it is closed, and what it left open rolled back, at the end."""
    async with AsyncExitStack() as stack:

        async def connect() -> Client:
            raw = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
            stack.push_async_callback(raw.close)
            return Client(raw)

        yield connect


@pytest.fixture
async def line(connect: Connect) -> Line:
    """Jobs, limits and workers, on a connection of their own."""
    return Line(await connect())


@pytest.fixture
async def watcher(connect: Connect) -> Watcher:
    """Who waits for a lock."""
    return Watcher(await connect())
