"""Contract, section 5: complete_tx blocks that run at once on an engine with a strict isolation level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from akadze import Akadze, current
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue_many

JOBS = 6


@pytest.fixture
async def app(database_url: str, table: Table) -> AsyncIterator[Akadze]:
    await table.rows("create table public.balance (amount integer)")
    await table.rows("insert into public.balance values (0)")
    engine = create_async_engine(
        database_url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="SERIALIZABLE", pool_size=JOBS
    )
    yield Akadze(engine=engine)
    await engine.dispose()


async def add_one(connection: Any, meeting: asyncio.Barrier | None) -> None:
    amount = (await connection.exec_driver_sql("select amount from public.balance")).scalar_one()
    if meeting is not None:
        await meeting.wait()  # all have read before the first one writes
    await connection.exec_driver_sql(f"update public.balance set amount = {amount + 1}")


async def test_blocks_that_conflict_under_serializable_spend_attempts_and_write_once(
    app: Akadze, table: Table, serve: Serve
) -> None:
    meeting = asyncio.Barrier(JOBS)

    @app.task("task", max_attempts=20, backoff=lambda _: timedelta(0))
    async def task() -> None:
        async with current().complete_tx() as connection:
            await add_one(connection, meeting if current().job.run_count == 1 else None)

    jobs = await enqueue_many(task, [{}] * JOBS)
    served = await serve(slots=JOBS)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {row["state"] for row in rows} == {"succeeded"}
    # Of the first runs one has committed; the others have spent an attempt each, and perhaps more later.
    spent = [row["attempt"] for row in rows]
    assert spent.count(0) == 1
    assert spent == [row["run_count"] - 1 for row in rows]
    assert {name for row in rows for name in row["error_names"]} == {"OperationalError"}
    assert await table.value("select amount from public.balance") == JOBS
    assert served.up


async def test_a_block_that_conflicts_may_be_tried_again_in_its_run(app: Akadze, table: Table, serve: Serve) -> None:
    meeting = asyncio.Barrier(JOBS)

    @app.task("task", max_attempts=1)
    async def task() -> None:
        met: asyncio.Barrier | None = meeting
        while True:
            try:
                async with current().complete_tx() as connection:
                    await add_one(connection, met)
                    return
            except DBAPIError as error:
                if error.orig is None or getattr(error.orig, "sqlstate", None) != "40001":
                    raise
                met = None

    jobs = await enqueue_many(task, [{}] * JOBS)
    await serve(slots=JOBS)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["attempt"], row["run_count"]) for row in rows} == {("succeeded", 0, 1)}
    assert await table.value("select amount from public.balance") == JOBS
