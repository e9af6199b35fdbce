"""Contract, section 5: one complete_tx block at a time finishes a job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

import akadze.sync
from akadze import Akadze, AkadzeError, current
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
