"""Contract, section 8: a worker in the process of a web application, which stops with it."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from akadze import Akadze, AkadzeError, Worker, list_jobs, list_workers
from akadze.contrib.fastapi import WorkerOptions, lifespan_worker
from tests.waiting import until

QUICK: WorkerOptions = {
    "poll_interval": timedelta(seconds=0.05),
    "heartbeat_interval": timedelta(seconds=0.2),
    "heartbeat_ttl": timedelta(seconds=10),
}


class Failure(Exception):
    pass


@pytest.fixture
def ran(app: Akadze) -> list[int]:
    ran: list[int] = []

    @app.task("note")
    async def note(n: int) -> None:
        ran.append(n)

    return ran


async def enqueue(app: Akadze, task: str, **arguments: Any) -> None:
    async with app.engine.begin() as connection:
        await app.tasks[task].using(session=connection).enqueue(**arguments)


async def test_jobs_run_while_the_block_does_and_the_worker_is_gone_after_it(app: Akadze, ran: list[int]) -> None:
    async with lifespan_worker(app, **QUICK) as worker:
        assert isinstance(worker, Worker)
        assert worker.app is app
        await enqueue(app, "note", n=1)
        await until(lambda: ran == [1])
        assert [summary.id for summary in await list_workers(app.engine)] == [worker.id]
    assert worker.id is None
    assert await list_workers(app.engine) == ()


async def test_the_end_of_the_block_waits_for_running_jobs(app: Akadze) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    @app.task("slow")
    async def slow() -> None:
        started.set()
        await may_end.wait()

    async with lifespan_worker(app, **QUICK):
        await enqueue(app, "slow")
        await started.wait()
        asyncio.get_running_loop().call_later(0.2, may_end.set)
    assert [job.state for job in await list_jobs(app.engine)] == ["succeeded"]


async def test_jobs_that_take_too_long_to_end_are_handed_back(app: Akadze) -> None:
    started = asyncio.Event()

    @app.task("endless")
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with lifespan_worker(app, shutdown_timeout=timedelta(0), **QUICK):
        await enqueue(app, "endless")
        await started.wait()
    assert [(job.state, job.attempt) for job in await list_jobs(app.engine)] == [("queued", 0)]


async def test_an_error_of_the_block_is_raised_and_stops_the_worker(app: Akadze, ran: list[int]) -> None:
    async def serve() -> None:
        async with lifespan_worker(app, **QUICK):
            await enqueue(app, "note", n=1)
            await until(lambda: ran == [1])
            raise Failure

    with pytest.raises(Failure):
        await serve()
    assert await list_workers(app.engine) == ()


@pytest.mark.parametrize("with_error", [False, True], ids=["in order", "by an error"])
async def test_a_worker_that_fails_is_told_at_once_and_raises_at_the_end_of_the_block(
    app: Akadze, ran: list[int], database_url: str, caplog: pytest.LogCaptureFixture, with_error: bool
) -> None:
    told: list[BaseException] = []
    block_goes_on = False

    async def serve() -> None:
        nonlocal block_goes_on
        async with lifespan_worker(app, on_failure=told.append, **QUICK):
            await enqueue(app, "note", n=1)
            await until(lambda: ran == [1])
            with psycopg.connect(database_url, autocommit=True) as connection:
                connection.execute("drop schema akadze cascade")
            await until(lambda: bool(told))
            assert "the worker in this process has stopped by an error" in caplog.text
            block_goes_on = True
            if with_error:
                raise Failure

    with pytest.raises(Failure if with_error else Exception) as caught:
        await serve()
    assert block_goes_on
    assert with_error or caught.value is told[0]


async def test_a_worker_that_cannot_start_keeps_the_block_from_beginning(app: Akadze, empty_database_url: str) -> None:
    async def refused(app: Akadze, **options: Any) -> str:
        with pytest.raises(AkadzeError) as caught:
            async with lifespan_worker(app, **options):
                raise AssertionError("the block has begun")
        return str(caught.value)

    assert "no tasks" in await refused(app)
    app.register(lambda: None, name="any")
    assert "slots" in await refused(app, slots=0)
    other = Akadze(database_url=empty_database_url)
    other.register(lambda: None, name="any")
    assert "akadze migrate" in await refused(other)
    await other.aclose()


def test_it_takes_the_options_of_a_worker() -> None:
    given = inspect.signature(Worker).parameters
    assert list(WorkerOptions.__annotations__) == [name for name in given if name != "app"]


def test_fastapi_need_not_be_installed() -> None:
    code = "import sys; sys.modules['fastapi'] = sys.modules['starlette'] = None; import akadze.contrib.fastapi"
    subprocess.run([sys.executable, "-c", code], check=True)
