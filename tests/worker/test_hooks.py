"""Contract, section 11: hooks around runs: before_run, after_run, around_run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from akadze import Akadze, Cancel, Fail, current, testing
from akadze.job import Job
from akadze.sync import testing as blocking
from tests.families import few
from tests.waiting import until
from tests.worker.serving import RUNNERS, Serve, run_ready
from tests.worker.table import Table, enqueue


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


async def _returns() -> None:
    pass


async def _raises() -> None:
    raise ValueError("each time")


async def _fails() -> None:
    raise Fail("for good")


async def _cancels() -> None:
    raise Cancel("not needed")


async def _completes() -> None:
    async with current().complete_tx():
        pass


@pytest.mark.parametrize("moment", ["before_run", "after_run"])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_error_of_a_hook_around_a_run_is_an_error_of_the_run(
    app: Akadze, table: Table, serve: Serve, moment: str, colour: str
) -> None:
    calls: list[str] = []

    def hook(job: Job) -> None:
        calls.append("hook")
        if job.run_count == 1:
            raise LookupError("in the hook")

    async def async_hook(job: Job) -> None:
        hook(job)

    getattr(app.hooks, moment).append(async_hook if colour == "async" else hook)

    @app.task("task", max_attempts=2, backoff=at_once)
    async def task() -> str:
        calls.append("body")
        return "result"

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["result"]) == ("succeeded", 1, "result")
    assert row["error_names"] == ["LookupError"]
    once = ["hook"] if moment == "before_run" else ["body", "hook"]
    assert calls == [*once, *(["hook", "body"] if moment == "before_run" else ["body", "hook"])]


@pytest.mark.parametrize("moment", ["before_run", "after_run"])
@pytest.mark.parametrize(
    ("runner", "colour"),
    # A plain function that the sync drain runs has no timeout: it is called, and returns when it returns.
    [("worker", "async"), ("worker", "sync"), ("drain", "async"), ("drain", "sync"), ("sync drain", "async")],
)
async def test_hooks_around_a_run_are_inside_its_timeout(
    app: Akadze, table: Table, serve: Serve, runner: str, colour: str, moment: str
) -> None:
    async def slow(job: Job) -> None:
        await asyncio.sleep(600)

    getattr(app.hooks, moment).append(slow)
    body = _returns if colour == "async" else lambda: "result"
    job_id = await enqueue(app.register(body, name="task", max_attempts=1, timeout=timedelta(seconds=0.1)))
    await run_ready(runner, app, serve)
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["TimeoutError"])


@pytest.mark.parametrize(
    ("body", "called"),
    [(_returns, True), (_completes, True), (_raises, False), (_fails, False), (_cancels, False)],
)
async def test_after_run_is_called_when_the_body_has_returned_and_only_then(
    app: Akadze, table: Table, serve: Serve, body: Any, called: bool
) -> None:
    before: list[Job] = []
    after: list[Job] = []
    app.hooks.before_run.append(before.append)
    app.hooks.after_run.append(after.append)
    job_id = await enqueue(app.register(body, name="task", max_attempts=1))
    served = await serve()
    await table.ended(job_id)
    await served.stop()
    assert [(job.id, job.state) for job in before] == [(job_id, "running")]
    assert after == (before if called else [])


@pytest.mark.parametrize("runner", few(RUNNERS, kept=["worker"]))
@pytest.mark.parametrize("moment", ["before_run", "after_run", "around_run"])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_hook_that_cannot_be_called_is_named_in_the_log(
    app: Akadze,
    table: Table,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    colour: str,
    moment: str,
    runner: str,
) -> None:
    def takes_nothing() -> None:
        raise AssertionError

    getattr(app.hooks, moment).append(takes_nothing)
    job_id = await enqueue(app.register(_returns if colour == "async" else lambda: None, name="task", max_attempts=1))
    await run_ready(runner, app, serve)
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["HookMisfit"])
    said = "takes_nothing cannot be called with (Job): give it the parameters that akadze.hooks.Hooks says"
    assert said in row["errors"][0]["message"]
    assert said in caplog.text


async def test_a_decorated_hook_that_cannot_be_called_is_named_in_the_log(
    app: Akadze, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def takes_none() -> Iterator[None]:
        yield

    app.hooks.around_run.append(takes_none)  # type: ignore[arg-type]  # what is tested
    job_id = await enqueue(app.register(_returns, name="task", max_attempts=1))
    await testing.drain(app)
    assert (await table.ended(job_id))["error_names"] == ["HookMisfit"]
    assert "takes_none cannot be called with (Job)" in caplog.text


@pytest.mark.parametrize("runner", ["worker", "drain"])
async def test_an_on_transition_hook_that_cannot_be_called_is_named_in_the_log(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, runner: str
) -> None:
    def takes_three(connection: Any, job: Job, state: str) -> None:
        raise AssertionError

    app.hooks.on_transition.append(takes_three)  # type: ignore[arg-type]  # what is tested
    job_id = await enqueue(app.register(_returns, name="task"))
    said = "takes_three cannot be called with (AsyncConnection, Job, str, str)"
    if runner == "worker":
        await serve()
        await until(lambda: said in caplog.text)
    else:
        await testing.drain(app, limit=2)
        assert said in caplog.text
    assert (await table.job(job_id))["state"] == "queued"


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_error_of_the_same_kind_inside_a_hook_stays_what_it_is(app: Akadze, table: Table, colour: str) -> None:
    def takes_it(job: Job) -> None:
        len(job)  # type: ignore[arg-type]  # what is tested

    app.hooks.before_run.append(takes_it)
    job_id = await enqueue(app.register(_returns, name="task", max_attempts=1))
    await (testing.drain(app) if colour == "async" else asyncio.to_thread(blocking.drain, app))
    assert (await table.ended(job_id))["error_names"] == ["TypeError"]


VALUE: ContextVar[str] = ContextVar("value", default="none")


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_around_run_surrounds_the_body_where_it_runs(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    threads: list[int] = []

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        threads.append(threading.get_ident())
        token = VALUE.set(f"job {job.id}")
        try:
            yield
        finally:
            VALUE.reset(token)

    app.hooks.around_run.append(around)

    def body() -> str:
        threads.append(threading.get_ident())
        return VALUE.get()

    async def async_body() -> str:
        return body()

    job_id = await enqueue(app.register(async_body if colour == "async" else body, name="task"))
    await serve()
    assert (await table.ended(job_id))["result"] == f"job {job_id}"
    assert len(set(threads)) == 1
    assert (threads[0] == threading.get_ident()) == (colour == "async")
