"""Contract, section 11: around_run: context managers in which task bodies run, in a worker and in both drains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

import akadze.sync
import akadze.sync.testing
import akadze.testing
from akadze import Akadze, current
from akadze.job import Job
from tests.waiting import until
from tests.worker.serving import RUNNERS, Serve, run_ready
from tests.worker.table import Table, enqueue

Run = Callable[[int], Awaitable[dict[str, Any]]]

var: ContextVar[str] = ContextVar("var", default="unset")


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest, app: Akadze, table: Table, serve: Serve) -> Run:
    """Run the jobs that are ready in one of the ways, and return the row of the one that is named."""

    async def run(job_id: int) -> dict[str, Any]:
        await run_ready(request.param, app, serve)
        if request.param == "worker":
            await table.in_state(job_id, "succeeded", "failed")
        return await table.job(job_id)

    return run


async def test_a_plain_function_runs_inside_in_its_own_thread_and_context(app: Akadze, run: Run) -> None:
    told: list[Any] = []

    def ask() -> tuple[int, str, int]:
        return threading.get_ident(), var.get(), akadze.sync.current().job.id

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        var.set("set")
        told.append(("in", job.task, job.state, *ask()))
        yield
        told.append(("out", *ask()))

    @app.task("plain")
    def plain() -> str:
        told.append(("body", *ask()))
        return "done"

    app.hooks.around_run.append(around)
    job_id = await enqueue(plain)
    row = await run(job_id)
    assert (row["state"], row["result"]) == ("succeeded", "done")
    here = (told[0][3], "set", job_id)
    assert told == [("in", "plain", "running", *here), ("body", *here), ("out", *here)]
    assert var.get() == "unset"


async def test_an_async_function_runs_inside_in_its_own_task(app: Akadze, run: Run) -> None:
    told: list[Any] = []

    def ask() -> tuple[int, str, int]:
        return id(asyncio.current_task()), var.get(), current().job.id

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        var.set("set")
        told.append(("in", *ask()))
        yield
        told.append(("out", *ask()))

    @asynccontextmanager
    async def async_around(job: Job) -> AsyncIterator[None]:
        told.append(("async in", *ask()))
        yield
        await asyncio.sleep(0)
        told.append(("async out", *ask()))

    @app.task("async")
    async def body() -> str:
        await asyncio.sleep(0)
        told.append(("body", *ask()))
        return "done"

    app.hooks.around_run += [around, async_around]
    job_id = await enqueue(body)
    row = await run(job_id)
    assert (row["state"], row["result"]) == ("succeeded", "done")
    assert [name for name, *_ in told] == ["in", "async in", "body", "async out", "out"]
    assert {tuple(where) for _, *where in told} == {(told[0][1], "set", job_id)}


async def test_it_stands_between_before_run_and_after_run(app: Akadze, run: Run) -> None:
    told: list[str] = []

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        told.append("in")
        yield
        told.append("out")

    @app.task("plain")
    def plain() -> None:
        told.append("body")

    app.hooks.before_run.append(lambda job: told.append("before"))
    app.hooks.after_run.append(lambda job: told.append("after"))
    app.hooks.around_run.append(around)
    await run(await enqueue(plain))
    assert told == ["before", "in", "body", "out", "after"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("moment", ["called", "entered", "left"])
async def test_its_error_is_an_error_of_the_run(app: Akadze, run: Run, moment: str, is_async: bool) -> None:
    told: list[str] = []

    @contextmanager
    def outer(job: Job) -> Iterator[None]:
        try:
            yield
        finally:
            told.append("outer out")

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        if moment == "entered":
            raise KeyError("entered")
        yield
        raise KeyError("left")

    def hook(job: Job) -> Any:
        if moment == "called":
            raise KeyError("called")
        return around(job)

    def plain() -> None:
        told.append("body")

    async def body() -> None:
        told.append("body")

    app.hooks.around_run += [outer, hook]
    task = app.register(body if is_async else plain, name="task", max_attempts=1)
    row = await run(await enqueue(task))
    assert (row["state"], row["error_names"]) == ("failed", ["KeyError"])
    assert told == (["body", "outer out"] if moment == "left" else ["outer out"])


@pytest.mark.parametrize("is_async", [False, True])
async def test_it_sees_the_error_of_the_body(app: Akadze, run: Run, is_async: bool) -> None:
    seen: list[str] = []

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as error:
            seen.append(str(error))
            raise

    def plain() -> None:
        raise ZeroDivisionError("by zero")

    async def body() -> None:
        raise ZeroDivisionError("by zero")

    app.hooks.around_run.append(around)
    task = app.register(body if is_async else plain, name="task", max_attempts=1)
    row = await run(await enqueue(task))
    assert seen == ["by zero"]
    assert (row["state"], row["error_names"]) == ("failed", ["ZeroDivisionError"])


@pytest.mark.parametrize("is_async", [False, True])
async def test_one_that_swallows_the_error_of_the_body_ends_the_run_as_if_it_had_returned_none(
    app: Akadze, run: Run, is_async: bool
) -> None:
    def plain() -> None:
        raise ZeroDivisionError("by zero")

    async def body() -> None:
        raise ZeroDivisionError("by zero")

    app.hooks.around_run.append(lambda job: suppress(ZeroDivisionError))
    task = app.register(body if is_async else plain, name="task")
    row = await run(await enqueue(task))
    assert (row["state"], row["result"], row["errors"]) == ("succeeded", None, [])


async def test_an_async_one_is_an_error_of_the_run_of_a_plain_function(app: Akadze, run: Run) -> None:
    @asynccontextmanager
    async def around(job: Job) -> AsyncIterator[None]:
        yield

    def plain() -> None:
        raise ZeroDivisionError("by zero")

    app.hooks.around_run.append(around)
    row = await run(await enqueue(app.register(plain, name="task", max_attempts=1)))
    assert (row["state"], row["error_names"]) == ("failed", ["AkadzeError"])
    assert "around" in row["errors"][0]["message"]


async def test_what_is_no_context_manager_is_an_error_of_the_run_and_named_in_the_log(
    app: Akadze, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def plain() -> None:
        pass

    app.hooks.around_run.append(lambda job: None)  # type: ignore[arg-type, return-value]  # what is tested
    row = await run(await enqueue(app.register(plain, name="task", max_attempts=1)))
    assert (row["state"], row["error_names"]) == ("failed", ["HookMisfit"])
    assert "<lambda> gave None: it has to return a context manager" in caplog.text


async def test_it_is_left_when_an_async_function_times_out(app: Akadze, run: Run) -> None:
    seen: list[str] = []

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    @app.task("task", max_attempts=1, timeout=timedelta(seconds=0.05))
    async def body() -> None:
        await asyncio.sleep(600)

    app.hooks.around_run.append(around)
    row = await run(await enqueue(body))
    assert (row["state"], row["error_names"]) == ("failed", ["TimeoutError"])
    assert seen == ["CancelledError"]


async def test_it_is_left_when_a_plain_function_that_has_timed_out_returns(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = threading.Event()
    seen: list[str] = []

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        yield
        seen.append("left")

    @app.task("task", max_attempts=1, timeout=timedelta(seconds=0.05))
    def plain() -> None:
        release.wait(30)

    app.hooks.around_run.append(around)
    job_id = await enqueue(plain)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"], seen) == ("failed", ["TimeoutError"], [])
    release.set()
    await until(lambda: seen == ["left"])


async def test_one_that_blocks_in_the_thread_of_a_plain_function_holds_up_nobody_else(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = threading.Event()

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        release.wait(30)
        yield

    @app.task("plain")
    def plain() -> float:
        return time.time()

    @app.task("async")
    async def body() -> None:
        pass

    app.hooks.around_run.append(lambda job: around(job) if job.task == "plain" else nullcontext())
    slow = await enqueue(plain, priority=1)
    quick = await enqueue(body)
    await serve(slots=2)
    assert (await table.ended(quick))["state"] == "succeeded"
    assert (await table.job(slow))["state"] == "running"
    release.set()
    assert (await table.ended(slow))["state"] == "succeeded"
