"""Contract, section 5: one complete_tx block at a time finishes a job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

import akadze.sync
from akadze import Akadze, AkadzeError, current
from akadze.job import Job
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

WRITE = "insert into public.written values (1)"


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_block_inside_an_open_one_is_refused_and_the_outer_one_goes_on(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    await table.rows("create table public.written (number int)")

    async def body() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text(WRITE))
            with pytest.raises(AkadzeError, match="open already"):
                async with current().complete_tx():
                    pytest.fail("the inner block ran")

    def sync_body() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text(WRITE))
            with (
                pytest.raises(AkadzeError, match="open already"),
                akadze.sync.current().complete_tx(),
            ):
                pytest.fail("the inner block ran")

    job_id = await enqueue(app.register(body if colour == "async" else sync_body, name="task", max_attempts=1))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["errors"]) == ("succeeded", [])
    assert await table.value("select count(*) from public.written") == 1


async def test_two_blocks_at_once_are_one_and_an_error(app: Akadze, table: Table, serve: Serve) -> None:
    await table.rows("create table public.written (number int)")
    answers: list[Any] = []

    @app.task("task", max_attempts=1)
    async def task() -> None:
        async def block() -> None:
            async with current().complete_tx() as connection:
                await connection.execute(text(WRITE))

        answers.extend(await asyncio.gather(block(), block(), return_exceptions=True))

    job_id = await enqueue(task)
    await serve()
    assert (await table.ended(job_id))["state"] == "succeeded"
    await until(lambda: answers)
    assert [type(answer) for answer in answers] == [type(None), AkadzeError]
    assert await table.value("select count(*) from public.written") == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
@pytest.mark.parametrize("where", ["block", "hook"])
async def test_a_transaction_that_was_ended_in_words_and_followed_by_another_is_not_taken_for_the_block_s(
    app: Akadze, table: Table, serve: Serve, colour: str, where: str
) -> None:
    await table.rows("create table public.written (number int)")

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "succeeded":
            await connection.execute(text("rollback"))
            await connection.execute(text("select 1"))

    def sync_hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "succeeded":
            connection.execute(text("rollback"))
            connection.execute(text("select 1"))

    async def body() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text(WRITE))
            if where == "block":
                await connection.execute(text("rollback"))

    def sync_body() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text(WRITE))
            if where == "block":
                connection.execute(text("rollback"))

    if where == "hook":
        app.hooks.on_transition.append(hook if colour == "async" else sync_hook)
    job_id = await enqueue(app.register(body if colour == "async" else sync_body, name="task", max_attempts=1))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["AkadzeError"])
    assert "leave commit() and rollback() to complete_tx" in row["errors"][0]["message"]
    assert await table.value("select count(*) from public.written") == 0


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_block_may_choose_the_isolation_level_of_its_transaction(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    async def body() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text("set transaction isolation level serializable"))

    def sync_body() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text("set transaction isolation level serializable"))

    job_id = await enqueue(app.register(body if colour == "async" else sync_body, name="task", max_attempts=1))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["errors"]) == ("succeeded", [])
