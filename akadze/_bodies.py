"""Run one task body to its end, both colours side by side, and say what becomes of the job.

Nothing that a body does comes out of here as an exception, save GeneratorExit: whatever it raises is an error of its
run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from akadze import _verdict
from akadze._failure import name_of, place_of
from akadze._log import get_logger
from akadze._loops import run_through
from akadze._results import ResultNotJson
from akadze._returned import Returned, text_of
from akadze._states import FAILED
from akadze._threads import BodyError, BodyThreads
from akadze.app import Akadze
from akadze.context import RUN
from akadze.hooks import HookMisfit, async_call_hook, async_call_within, called, sync_call_within
from akadze.job import Job
from akadze.outcomes import Cancel, Fail, Retry, Snooze
from akadze.task import Task

logger = get_logger("akadze.job")

#: Seconds that a body has to end after its timeout has cancelled it, before it is named.
_TO_END: Final = 1.0


class Run(Protocol):
    """What running a body needs to know of its run."""

    app: Akadze
    task: Task[Any]
    id: int
    args: str
    attempt: int
    max_attempts: int
    snoozes: int
    completed: bool

    @property
    def job(self) -> Job:
        """The job as it was claimed."""

    def now(self) -> datetime:
        """The time by the database's clock."""


async def run_body_async(run: Run, threads: BodyThreads, taken_back: Callable[[], bool]) -> _verdict.Move | None:
    """Run the body with its hooks and timeout; return the move, None when complete_tx has finished the job.

    ``taken_back`` tells whether a cancellation is the worker's own. A GeneratorExit comes out of here, and is the
    caller's to judge, in the coroutine that is the task's own.
    """
    try:
        if run.task.timeout is None:
            result = await _body_async(run, threads)
        else:
            result = await _timed(run, threads, run.task.timeout)
        move = _verdict.returned(result)
    except GeneratorExit:
        raise  # what is returned here would be lost: where a future raises it, Python closes each coroutine on the way
    except BaseException as error:
        return ended(run, error, taken_back)
    return None if run.completed else move


def ended(run: Run, error: BaseException, taken_back: Callable[[], bool]) -> _verdict.Move | None:
    """Return the move of a body that raised ``error``, None when complete_tx has finished the job."""
    if run.completed:
        _warn_of_late_error(run, error)
        return None
    if taken_back():
        return _verdict.HAND_BACK
    return judged(run, error)


async def _timed(run: Run, threads: BodyThreads, timeout: timedelta) -> str | None:
    seconds = timeout.total_seconds()
    scope = asyncio.timeout(seconds)
    end = asyncio.get_running_loop().time() + seconds

    def outlived() -> bool:
        # The body has swallowed its cancellation, or something has kept the loop from cancelling it: a run that is
        # longer than its timeout is an error in either case.
        return (scope.expired() or asyncio.get_running_loop().time() > end) and not run.completed

    watch = asyncio.get_running_loop().call_later(seconds + _TO_END, _warn_of_overrun, run, timeout)
    try:
        async with scope:
            result = await _body_async(run, threads)
        if outlived():
            raise _timed_out(timeout)
        return result
    except (Retry, Snooze, Fail, Cancel) as error:
        if outlived():
            raise _timed_out(timeout) from error
        raise
    except TimeoutError:
        if scope.expired():
            if run in threads.busy:
                _warn_of_thread(run, timeout)
            raise _timed_out(timeout) from None
        raise
    finally:
        watch.cancel()


async def _body_async(run: Run, threads: BodyThreads) -> str | None:
    """Run the body with its hooks and return its result as JSON text."""
    hooks = run.app.hooks
    task = run.task
    if hooks.before_run:
        for hook in hooks.before_run:
            await async_call_hook(hook, run.job)
    arguments = task.arguments.from_json(run.args)
    fn: Any = task.fn
    around = hooks.around_run
    if task.is_async:
        if around:
            returned = await async_call_within(around, run.job, lambda: _returned_by(fn, arguments))
        else:
            returned = Returned(await fn(**arguments))
    else:
        if around:
            job = run.job
            returned = await threads.run(lambda: sync_call_within(around, job, lambda: Returned(fn(**arguments))), run)
        else:
            returned = await threads.run(lambda: Returned(fn(**arguments)), run)
        if isinstance(returned, BodyError):
            raise returned.error
    if hooks.after_run:
        for hook in hooks.after_run:
            await async_call_hook(hook, run.job)
    return text_of(returned)


async def _returned_by(fn: Any, arguments: dict[str, Any]) -> Returned:
    return Returned(await fn(**arguments))


def run_body_sync(run: Run) -> _verdict.Move | None:
    """Run the body in this thread, an async one on a loop of its own; return the move as ``run_body_async`` does.

    A plain function cannot be stopped, so its timeout is not enforced here.
    """
    try:
        move = _verdict.returned(_body_sync(run))
    except BaseException as error:
        if run.completed:
            _warn_of_late_error(run, error)
            return None
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # somebody pressed Ctrl-C in the test run
        return judged(run, error)
    return None if run.completed else move


def _body_sync(run: Run) -> str | None:
    if run.task.is_async:
        text: str | None = _on_own_loop(_whole_body(run))
        return text
    hooks = run.app.hooks
    fn: Any = run.task.fn
    for hook in hooks.before_run:
        _call_hook_blocking(hook, run.job)
    arguments = run.task.arguments.from_json(run.args)
    returned: Returned | None = sync_call_within(hooks.around_run, run.job, lambda: Returned(fn(**arguments)))
    for hook in hooks.after_run:
        _call_hook_blocking(hook, run.job)
    return text_of(returned)


async def _whole_body(run: Run) -> str | None:
    threads = BodyThreads("akadze-drain")
    if run.task.timeout is None:
        return await _body_async(run, threads)
    return await _timed(run, threads, run.task.timeout)


def _call_hook_blocking(hook: Callable[..., Any], job: Job) -> None:
    result = called(hook, job)
    if inspect.isawaitable(result):
        _on_own_loop(result)


#: Awaits on a loop and returns the result, where another way than asyncio.run in a helper thread is wanted.
OWN_LOOP: ContextVar[Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any] | None] = ContextVar(
    "akadze_own_loop", default=None
)


def _on_own_loop(body: Awaitable[Any]) -> Any:
    """Await on a loop of its own, in a helper thread, so that it works inside a running loop too."""

    async def wrapped() -> Any:
        # The error is carried as a value: SystemExit would end the loop.
        try:
            result = await body
        except GeneratorExit as error:
            return BodyError(error)
        except BaseException as error:
            result = BodyError(error)
        await _let_cancellation_pass()
        return result

    outcome = (OWN_LOOP.get() or _run_in_helper_thread)(wrapped)
    if isinstance(outcome, BodyError):
        raise outcome.error
    return outcome


def _run_in_helper_thread(body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    outcome: list[Any] = []
    loops: list[asyncio.AbstractEventLoop] = []
    interrupted = threading.Event()
    context = copy_context()

    def run() -> None:
        with asyncio.Runner() as runner:
            loops.append(runner.get_loop())
            if not interrupted.is_set():
                outcome.append(run_through(runner, body()))

    thread = threading.Thread(target=lambda: context.run(run), name="akadze-drain", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException:  # Ctrl-C in the test run: its job goes back to the queue, so it does not go on
        interrupted.set()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            for loop in loops:
                loop.call_soon_threadsafe(_cancel_all, loop)
        if thread.is_alive():
            thread.join(_TO_END)
        raise
    return outcome[0]


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


async def drain_body_async(run: Any) -> _verdict.Move | None:
    """Run the body of a drained job in a task and context of its own."""
    threads = BodyThreads("akadze-drain")
    context = copy_context()
    context.run(RUN.set, run)
    stopped = asyncio.Event()
    body = asyncio.get_running_loop().create_task(_drained(run, threads, stopped.is_set), context=context)
    try:
        return await asyncio.shield(body)
    except asyncio.CancelledError:
        stopped.set()
        body.cancel()
        # Its statement may be under way on the connection that is the drain's, too.
        await asyncio.wait([body], timeout=_TO_END)
        raise
    finally:
        threads.close()


async def _drained(run: Any, threads: BodyThreads, taken_back: Callable[[], bool]) -> _verdict.Move | None:
    try:
        move = await run_body_async(run, threads, taken_back)
    except GeneratorExit as error:
        return ended(run, error, taken_back)
    await _let_cancellation_pass()
    return move


async def _let_cancellation_pass() -> None:
    """Take the cancellation that a body has asked for and not waited for: it would end this task without its result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


def drain_body_sync(run: Any) -> _verdict.Move | None:
    """Run the body of a drained job in this thread, in a context of its own."""
    context = copy_context()
    context.run(RUN.set, run)
    return context.run(run_body_sync, run)


#: Seconds between two looks of a drain at jobs that a limit holds back.
_PAUSE = 0.05


async def drain_pause_async() -> None:
    await asyncio.sleep(_PAUSE)


def drain_pause_sync() -> None:
    time.sleep(_PAUSE)


def judged(run: Run, error: BaseException) -> _verdict.Move:
    """Return what becomes of a run that ended with this error, and log it."""
    try:
        move = _verdict_on(run, error)
    except BaseException as problem:  # a subclass of Retry, for instance, that does not set its delay
        unread = RuntimeError(f"what a {name_of(error)} of the task asks for cannot be read")
        unread.__cause__ = problem
        error, move = unread, _verdict_on(run, unread)
    _report(run, error, move)
    return move


def refused(run: Run, outcome: str) -> _verdict.Move:
    """Return what is written in place of an outcome that the database refuses.

    It is the same with its error in ASCII, which all encodings of databases have, or an error about the result.
    """
    return _verdict.in_ascii(outcome) or judged(run, ResultNotJson("the database refuses to store the result"))


def _verdict_on(run: Run, error: BaseException) -> _verdict.Move:
    return _verdict.raised(
        error,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        snoozes=run.snoozes,
        backoff=run.task.backoff,
        now=run.now(),
        random=random.random(),  # noqa: S311 - jitter, no secret
    )


def _report(run: Run, error: BaseException, move: _verdict.Move) -> None:
    if move.warning is not None:
        logger.warning("job %s: %s", run.id, move.warning)
    if move.attempt is not None:
        level = logging.ERROR if move.state == FAILED else logging.WARNING
        if logger.isEnabledFor(level):
            # The place is empty if akadze itself raised it, as for a result that is not JSON.
            place = str(error) if isinstance(error, HookMisfit) else place_of(error)
            logger.log(
                level,
                "job %s of task %s: attempt %s of %s ended with %s, now %s%s",
                run.id,
                run.task.name,
                move.attempt,
                run.max_attempts,
                name_of(error),
                move.state,
                f"\n{place}" if place else "",
            )


def _timed_out(timeout: timedelta) -> TimeoutError:
    return TimeoutError(f"the run took longer than its timeout of {timeout}")


def _warn_of_overrun(run: Run, timeout: timedelta) -> None:
    logger.warning(
        "job %s of task %s still runs %g s after its timeout of %s has cancelled it: it keeps its slot until it ends",
        run.id,
        run.task.name,
        _TO_END,
        timeout,
    )


def _warn_of_thread(run: Run, timeout: timedelta) -> None:
    logger.warning(
        "job %s of task %s is a plain function, which cannot be stopped: it goes on in its thread after its timeout "
        "of %s",
        run.id,
        run.task.name,
        timeout,
    )


def _warn_of_late_error(run: Run, error: BaseException) -> None:
    place = place_of(error)
    logger.warning(
        "job %s of task %s: %s after complete_tx had finished the job%s",
        run.id,
        run.task.name,
        name_of(error),
        f"\n{place}" if place else "",
    )
