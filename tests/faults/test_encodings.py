"""Contract, sections 4 and 5: in a database whose encoding lacks a character a job ends as its body has said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from akadze import Akadze, Cancel, Fail, migrate, testing
from akadze.sync import testing as blocking
from tests.database import drop_database, with_database
from tests.families import FULL, few
from tests.worker.serving import workers
from tests.worker.table import Table, enqueue, open_table

DATABASE = "akadze_latin_test"


@pytest.fixture
async def table(anyio_backend: str, server_url: str) -> AsyncIterator[Table]:
    """That of a database in Latin 1, which has neither € nor …"""
    drop_database(server_url, DATABASE)
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"create database {DATABASE} encoding 'LATIN1' locale 'C' template template0")
    url = with_database(server_url, DATABASE)
    await migrate(url)
    async with open_table(url) as table:
        yield table
    drop_database(server_url, DATABASE)


async def _fails() -> None:
    raise Fail("the price is 5 €")


async def _cancels() -> None:
    raise Cancel("not needed…")


async def _raises_much() -> None:
    raise ValueError("plain ASCII " * 1000)


async def _raises_much_more() -> None:
    raise ValueError("€ " * 5000)


async def _returns() -> str:
    return "5 €"


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    "runner", few(["worker", "drain", "sync drain", "drain on a session"], kept=["worker", "sync drain"])
)
@pytest.mark.parametrize(
    ("body", "state", "name", "said"),
    [
        (_fails, "failed", "Fail", "the price is 5 \\u20ac"),
        pytest.param(_cancels, "cancelled", "Cancel", "not needed\\u2026", marks=FULL),
        pytest.param(_raises_much, "failed", "ValueError", " [...] ", marks=FULL),
        pytest.param(_raises_much_more, "failed", "ValueError", " [...] ", marks=FULL),
        (_returns, "failed", "ResultNotJson", "the database refuses to store the result"),
    ],
)
async def test_an_outcome_that_the_encoding_does_not_have_keeps_its_meaning(
    table: Table, server_url: str, runner: str, body: Any, state: str, name: str, said: str, hooked: bool
) -> None:
    url = with_database(server_url, DATABASE)
    app = Akadze(database_url=url)
    moves: list[str] = []
    if hooked:
        app.hooks.on_transition.append(lambda connection, job, before, after: moves.append(after))
    attempts = 1 if name in ("ValueError", "ResultNotJson") else 3
    task = app.register(body, name="task", max_attempts=attempts, backoff=lambda attempt: timedelta(0))
    job_id = await enqueue(task)
    if runner == "worker":
        async with workers(app, table) as serve:
            await serve()
            await table.ended(job_id)
    elif runner == "drain":
        await testing.drain(app)
    elif runner == "drain on a session":
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as session:
            await testing.drain(app, session=session)
    else:
        await asyncio.to_thread(blocking.drain, app)
    row = await table.job(job_id)
    assert (row["state"], row["run_count"], row["error_names"]) == (state, 1, [name])
    message = row["errors"][0]["message"]
    assert said in message
    assert len(message) <= 2048
    assert moves == (["running", state] if hooked else [])
    await app.aclose()
