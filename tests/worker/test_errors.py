"""Contract, sections 4 and 5: what a body raises, as it is recorded."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta
from typing import Any

import pytest

from akadze import Akadze, current, list_jobs
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


class Quit(BaseException):
    pass


def _exit() -> None:
    sys.exit(3)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _generator_exit() -> None:
    raise GeneratorExit


def _stop_iteration() -> None:
    raise StopIteration


def _quit() -> None:
    raise Quit("now")


def _cancelled() -> None:
    raise asyncio.CancelledError


def _nothing() -> None:
    pass


def _group() -> None:
    raise BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("one")])


ABRUPT = {
    _exit: "SystemExit",
    _stop_iteration: "RuntimeError",
    _interrupt: "KeyboardInterrupt",
    _generator_exit: "GeneratorExit",
    _quit: "Quit",
    _cancelled: "CancelledError",
    _group: "BaseExceptionGroup",
}


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_what_would_end_a_program_is_an_error_of_the_run_when_a_body_raises_it(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    jobs = {}
    for function, name in ABRUPT.items():

        async def body(function: str = function.__name__) -> None:
            globals()[function]()

        task = app.register(body if colour == "async" else function, name=name, max_attempts=1)
        jobs[name] = await enqueue(task)
    harmless = app.register(at_once, name="harmless")
    last = await enqueue(harmless, {"attempt": 1})
    served = await serve()
    assert (await table.ended(last, *jobs.values()))["state"] == "succeeded"
    for name, job_id in jobs.items():
        row = await table.job(job_id)
        assert (row["state"], row["error_names"]) == ("failed", [name])
        # Python itself turns a StopIteration in a coroutine into a RuntimeError.
        assert name != "RuntimeError" or "StopIteration" in row["errors"][0]["message"]
    assert served.up
    await served.stop()


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_run_that_ends_in_an_odd_way_is_tried_again_while_there_are_attempts(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    ran: list[str] = []

    def calling(function: Any, name: str) -> Any:
        def plain(n: int) -> Any:
            ran.append(name)
            return function()

        async def coroutine(n: int) -> Any:
            return plain(n)

        return coroutine if colour == "async" else plain

    jobs: dict[str, int] = {}
    for function, name in {**ABRUPT, object: "ResultNotJson", _nothing: "ArgumentsInvalid"}.items():
        task = app.register(
            calling(function, name), name=name, max_attempts=2, backoff=lambda attempt: timedelta(days=1)
        )
        jobs[name] = await enqueue(task, {"n": 1})
    await table.rows("update akadze.jobs set args = '{}' where task = 'ArgumentsInvalid'")
    served = await serve(slots=3)
    await table.until("select bool_and(state <> 'running' and run_count = 1) from akadze.jobs")
    for name, job_id in jobs.items():
        row = await table.job(job_id)
        assert (row["state"], row["attempt"], row["error_names"]) == ("queued", 1, [name])
        assert row["run_at"] - row["created_at"] > timedelta(hours=23)
    assert sorted(ran) == sorted({*jobs} - {"ArgumentsInvalid"})
    assert served.up


async def test_a_body_that_cancels_itself_has_an_error(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> None:
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        await asyncio.sleep(0)

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"], row["attempt"]) == ("failed", ["CancelledError"], 1)


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no space left on device")


class NoTraceback(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]  # that is the point
        raise SystemExit("no traceback")


async def test_a_log_handler_that_raises_does_not_decide_what_becomes_of_a_job(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=3, backoff=lambda attempt: 7)  # type: ignore[arg-type, return-value]  # warned of
    async def task(how: str) -> None:
        if how == "fail":
            raise ValueError("first")
        if how == "complete":
            async with current().complete_tx():
                pass
            raise ValueError("late")
        if how == "no traceback":
            raise NoTraceback

    jobs = [await enqueue(task, {"how": how}, max_attempts=1) for how in ("fail", "complete", "no traceback", "return")]
    retried = await enqueue(task, {"how": "fail"})
    served = await serve()
    handler = Broken(logging.DEBUG)
    logging.getLogger("akadze").addHandler(handler)
    try:
        await table.ended(*jobs)
        await table.until("select attempt = 1 from akadze.jobs where id = %s", retried)
    finally:
        logging.getLogger("akadze").removeHandler(handler)
    assert [row["state"] for row in await table.jobs(*jobs)] == ["failed", "succeeded", "failed", "succeeded"]
    assert [row["error_names"] for row in await table.jobs(jobs[0], jobs[2])] == [["ValueError"], ["NoTraceback"]]
    assert served.up


class TwoParts(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NumberText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # that is the point


def _chained() -> Exception:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 - the context is what is looked at
    except ValueError as error:
        return error


def _cyclic() -> Exception:
    one, two = ValueError("first"), KeyError("second")
    one.__cause__, two.__cause__ = two, one
    return one


def _deep(n: int = 0) -> int:
    return _deep(n + 1) + 1


def _recursion() -> Exception:
    try:
        _deep()
    except RecursionError as error:
        return error
    raise AssertionError("there is an end to recursion")


ERRORS: dict[str, tuple[Exception, str, list[str]]] = {
    "with a constructor of its own": (TwoParts(7, "late"), "TwoParts", ["7"]),
    "in many languages": (ValueError("žluťoučký 🐎"), "ValueError", ["žluťoučký 🐎"]),
    "without a text": (NoText(), "NoText", []),
    "with a text that is none": (NumberText(), "NumberText", []),
    "with NUL and surrogates": (ValueError("a\0b\ud800c"), "ValueError", ["a\\u0000b\\ud800c"]),
    "with a password": (OSError("postgresql://bob:hunter2@db/x"), "OSError", ["postgresql://bob:", "@db/x"]),
    "while handling another": (_chained(), "ValueError", ["second", "KeyError", "first"]),
    "that is its own cause": (_cyclic(), "ValueError", ["first", "second"]),
    "of several": (ExceptionGroup("both", [KeyError("one"), OSError("two")]), "ExceptionGroup", ["one", "two"]),
    "of great length": (RuntimeError("begin" + "x" * 50_000_000 + "end"), "RuntimeError", ["beginx", "xend"]),
    "from recursion": (_recursion(), "RecursionError", ["recursion"]),
}


@pytest.mark.parametrize("which", ERRORS)
async def test_an_error_is_recorded(app: Akadze, table: Table, serve: Serve, which: str) -> None:
    error, name, parts = ERRORS[which]

    @app.task("task", max_attempts=12, backoff=at_once)
    async def task() -> None:
        raise error

    job_id = await enqueue(task)
    served = await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["error_names"]) == ("failed", 12, [name] * 10)
    message = row["errors"][-1]["message"]
    assert all(part in message for part in parts), message
    assert "hunter2" not in message
    assert len(message.encode()) <= 2048 + 10
    assert [job.state for job in await list_jobs(app.engine)] == ["failed"]
    assert served.up
