"""Contract, section 5: what is left in memory of runs that have ended: nothing for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import sys
from datetime import timedelta

import pytest

from akadze import Akadze, Fail
from akadze._claimed import ClaimedRun
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


@pytest.mark.parametrize("kind", ["coroutine", "function", "failing", "timed"])
async def test_what_a_run_needed_is_freed_without_the_garbage_collector(
    app: Akadze, table: Table, serve: Serve, kind: str
) -> None:
    """A circle for each job would make the collector walk through the whole process again and again."""

    async def body() -> None:
        await asyncio.sleep(0)
        if kind == "failing":
            raise Fail("as it should")

    def function() -> None:
        pass

    # asyncio keeps a cancelled timer, with its context and so with the run, up to the time that it was set to.
    timeout = timedelta(seconds=3) if kind == "timed" else None
    task = app.register(function if kind == "function" else body, name="t", timeout=timeout)
    worker = await serve(slots=5)
    gc.collect()
    gc.disable()
    try:
        await table.ended(*await enqueue_many(task, [{}] * 20))
        await until(lambda: not [found for found in gc.get_objects() if type(found) is ClaimedRun and found.app is app])
    finally:
        gc.enable()
    await worker.stop()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks from Python 3.12 on")
async def test_a_loop_with_eager_tasks_runs_jobs_and_keeps_nothing_of_them(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("at_once")
    async def at_once() -> None:
        pass

    @app.task("later")
    async def later() -> None:
        await asyncio.sleep(0.01)

    @app.task("closed")
    async def closed() -> None:
        raise GeneratorExit

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    try:
        worker = await serve(slots=5)
        jobs = [*await enqueue_many(at_once, [{}] * 10), *await enqueue_many(later, [{}] * 10)]
        assert {row["state"] for row in [await table.ended(job_id) for job_id in jobs]} == {"succeeded"}
        refused = await table.ended(await enqueue(closed, max_attempts=1))
        assert (refused["state"], refused["errors"][0]["error"]) == ("failed", "GeneratorExit")
        await until(lambda: not [found for found in gc.get_objects() if type(found) is ClaimedRun and found.app is app])
        await worker.stop()
    finally:
        gc.enable()
        loop.set_task_factory(None)
