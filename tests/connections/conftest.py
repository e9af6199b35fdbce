"""One caller of each kind, a task, and a look at what has been committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from akadze import Akadze
from tests.connections.caller import Caller
from tests.connections.kinds import KINDS, SOME
from tests.families import few

Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    """Run a statement outside the caller's transaction, and return the committed rows."""
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:

        def rows(statement: str) -> list[dict[str, Any]]:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        rows("create table public.orders (name text)")
        # For sessions whose search_path leads elsewhere.
        rows("create schema elsewhere")
        rows("create table elsewhere.jobs (id text)")
        yield rows


@pytest.fixture(params=few(KINDS, kept=SOME))
async def caller(request: pytest.FixtureRequest, database_url: str, rows: Rows) -> AsyncIterator[Caller]:
    async with KINDS[request.param](database_url) as caller:
        yield caller


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note", queue="notes", priority=3, max_attempts=5)
    def note(n: int, text: str = "") -> None: ...

    return note


async def order(caller: Caller, name: str) -> None:
    """Write something of the caller's own in its transaction."""
    await caller.execute(f"insert into public.orders (name) values ('{name}')")


def orders(rows: Rows) -> list[str]:
    return [row["name"] for row in rows("select name from public.orders order by name")]


def numbers(rows: Rows) -> list[Any]:
    """The argument ``n`` of the committed jobs, in the order in which they were inserted."""
    return [row["n"] for row in rows("select args -> 'n' as n from akadze.jobs order by id")]
