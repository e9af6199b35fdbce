"""Contract, section 11: hooks of a worker that take long, or for ever: they cost time, and no other job's outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze
from tests.families import FULL
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


@FULL
async def test_hooks_that_together_take_longer_than_the_lease_are_called_in_smaller_portions(
    app: Akadze, table: Table, serve: Serve
) -> None:
    async def on_transition(connection: Any, job: Any, from_state: str, to_state: str) -> None:
        await asyncio.sleep(0.2)

    app.hooks.on_transition.append(on_transition)

    @app.task("task")
    async def task() -> None:
        pass

    jobs = await enqueue_many(task, [{}] * 20)
    served = await serve(slots=20, heartbeat_ttl=2)
    await table.ended(*jobs)
    assert await table.value("select max(run_count) from akadze.jobs") == 1
    assert served.up


async def hurts_its_own_job_only(
    hang: Callable[[Any], Awaitable[object]], state: str, app: Akadze, table: Table, serve: Serve
) -> None:
    """Serve with a hook that hangs in one job's transition to the state, and look at that job and the others."""
    hung: list[int] = []

    async def on_transition(connection: Any, job: Any, from_state: str, to_state: str) -> None:
        if job.id == hung[0] and to_state == state:
            await hang(connection)

    app.hooks.on_transition.append(on_transition)

    @app.task("task")
    async def task() -> None:
        pass

    hung.append(await enqueue(task))
    jobs = await enqueue_many(task, [{}] * 6)
    served = await serve(slots=4, heartbeat_ttl=3)
    await table.ended(*jobs)
    row = await table.job(hung[0])
    assert (row["state"], row["run_count"]) == (("running", 1) if state == "succeeded" else ("queued", 0))
    assert served.up


@pytest.mark.parametrize("waits_for", ["something else", "the database"])
@pytest.mark.parametrize("state", ["succeeded", "running"])
async def test_a_hook_that_does_not_return_hurts_its_own_job_only(
    waits_for: str, state: str, app: Akadze, table: Table, serve: Serve
) -> None:
    async def hang(connection: Any) -> None:
        if waits_for == "the database":
            await connection.execute(text("select pg_sleep(3600)"))
        await asyncio.sleep(3600)

    await hurts_its_own_job_only(hang, state, app, table, serve)


@pytest.mark.parametrize(("kind", "state"), [(SystemExit, "running"), (GeneratorExit, "succeeded")])
async def test_a_hook_that_hangs_and_gives_up_in_its_own_way_hurts_its_own_job_only(
    kind: type[BaseException], state: str, app: Akadze, table: Table, serve: Serve
) -> None:
    async def hang(connection: Any) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise kind from None

    await hurts_its_own_job_only(hang, state, app, table, serve)
