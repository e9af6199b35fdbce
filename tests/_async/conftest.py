"""The fixtures of twinned tests: what is a connection or an engine here has the colour of the folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from akadze import Akadze

if True:  # ASYNC
    from sqlalchemy.ext.asyncio import AsyncEngine as Engine
else:
    from sqlalchemy import Engine


class Rows(Protocol):
    async def __call__(self, statement: str, **parameters: Any) -> list[dict[str, Any]]: ...


@pytest.fixture
def engine(app: Akadze) -> Engine:
    """The app's engine of this colour."""
    if True:  # ASYNC
        return app.engine
    else:
        return app.sync_engine


@pytest.fixture
async def connection(engine: Engine) -> AsyncIterator[AsyncConnection]:
    """A connection in a transaction that is rolled back at the end."""
    async with engine.connect() as connection:
        await connection.begin()
        yield connection


@pytest.fixture
def rows(engine: Engine) -> Rows:
    """Run one statement with `:name` parameters outside any transaction, and return the committed rows as dicts."""

    async def rows(statement: str, **parameters: Any) -> list[dict[str, Any]]:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            result = await connection.execute(text(statement), parameters)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    return rows
