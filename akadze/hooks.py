"""Callables that an application adds to follow its jobs."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any

from akadze._article import with_article
from akadze._failure import name_of as class_of
from akadze._failure import place_of
from akadze._signature import is_async
from akadze.errors import AkadzeError, EnqueueError
from akadze.job import Job

__all__ = ["Hooks"]

Hook = Callable[..., Any]


class HookFailed(Exception):
    """A hook raised something that is no Exception, SystemExit for instance."""


class HookMisfit(AkadzeError):
    """A hook cannot be called with what it is given, or gave what cannot be used. The message holds no values."""


class HookHung(HookFailed):
    """A hook did not return in the time that it has."""

    #: The job for which it was called, where the one who catches this cannot know.
    job_id: int | None = None


def hung_in(error: BaseException | None) -> HookHung | None:
    """Return the HookHung that an error is, or that came before it: the way back on a dead connection raises, too.

    What came before an error may lead back to it, where somebody has set ``__context__``, or be an attribute of its
    class's own.
    """
    seen: set[int] = set()
    while error is not None and not isinstance(error, HookHung):
        if id(error) in seen:
            return None
        seen.add(id(error))
        error = _context_of(error)
    return error


_context_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__


class Spoilt(Exception):
    """While hooks were called for this run of a job the connection was lost, or given up, with this error.

    It may have been an outage or the hook itself, which has closed the connection or cancelled a statement of its own.
    """

    def __init__(self, run: tuple[int, int], error: Exception) -> None:
        super().__init__(f"the connection was lost while hooks were called for run {run[1]} of job {run[0]}")
        self.run = run
        self.error = error


class Hooks:
    """Lists of callables that ``app.hooks`` holds, sync or async but for ``around_run``. Append to the lists.

    - ``on_enqueue(connection, job)`` runs in the enqueue transaction, for each job of ``enqueue_many`` too. An error
      there makes the enqueue raise it, without a row and with the caller's transaction usable.
    - ``before_run(job)`` runs before the task body, ``after_run(job)`` after it has returned, both inside its timeout.
      An error there counts as a failed run.
    - ``around_run(job)`` returns a context manager in which the task body runs: in the thread of a plain function, in
      the run's asyncio task otherwise, where it may be an async one. The first of the list is the outermost. An error
      there, too, counts as a failed run; if one swallows the body's error, the run ends as if the body had returned
      None. It sees what leaves the body only: of a plain function that has timed out, when it returns at last.
    - ``on_transition(connection, job, from_state, to_state)`` runs in the transaction that changes the job's state.
      It must not raise: an error rolls that job's transition back, and the job stays as it was. In a worker, an async
      call that takes a third of ``heartbeat_ttl`` counts as an error (in ``complete_tx`` the task's own timeout holds
      instead); the worker's other jobs wait for it meanwhile. A plain one holds up the whole worker, its heartbeat too,
      for as long as it takes.

    ``connection`` is the object that the transaction runs on: the caller's own session at enqueue, an SQLAlchemy
    connection in a worker.
    """

    def __init__(self) -> None:
        self.on_enqueue: list[Callable[[Any, Job], Awaitable[None] | None]] = []
        self.before_run: list[Callable[[Job], Awaitable[None] | None]] = []
        self.after_run: list[Callable[[Job], Awaitable[None] | None]] = []
        self.around_run: list[Callable[[Job], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]] = []
        self.on_transition: list[Callable[[Any, Job, str, str], Awaitable[None] | None]] = []


def told(error: BaseException, hook: str = "the hook") -> str:
    """Return what the log says of an error of a hook: its class and place, for its message may hold arguments."""
    if isinstance(error, HookMisfit):
        return str(error)
    if isinstance(error, HookFailed):
        return f"{error}\n{place_of(error.__cause__ or error)}".rstrip()
    return f"{hook} raised {class_of(error)}\n{place_of(error)}".rstrip()


def name_of(hook: Hook) -> str:
    return str(getattr(hook, "__qualname__", None) or type(hook).__qualname__)


def refuse_async(
    hooks: list[Any],
    moment: str,
    *,
    error: type[AkadzeError] = EnqueueError,
    call: str = "this enqueue",
    instead: str = "enqueue on an async session",
) -> None:
    """Raise ``error`` if one of the hooks cannot run where nothing can be awaited."""
    for hook in hooks:
        if is_async(hook):
            raise error(
                f"the {moment} hook {name_of(hook)} is async, but {call} is blocking: make the hook a plain function, "
                f"or {instead}"
            )


def called(hook: Hook, *arguments: Any) -> Any:
    """Call a hook, and return what it returns. Raises HookMisfit where the call itself does not fit the hook."""
    try:
        return hook(*arguments)
    except TypeError as error:
        if _takes(hook, arguments, error):
            raise  # it comes from inside
        given = ", ".join(type(argument).__name__ for argument in arguments)
        raise HookMisfit(
            f"the hook {name_of(hook)} cannot be called with ({given}): give it the parameters that akadze.hooks.Hooks "
            "says"
        ) from None


def _takes(hook: Hook, arguments: Sequence[Any], error: TypeError) -> bool:
    try:
        signature = inspect.signature(hook)  # of what a decorator wraps, too
    except (TypeError, ValueError):
        return error.__traceback__ is not None and error.__traceback__.tb_next is not None
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


async def async_call_hook(hook: Hook, *arguments: Any) -> None:
    """Call a hook of either kind."""
    result = called(hook, *arguments)
    if inspect.isawaitable(result):
        await result


async def async_call_watcher(hook: Hook, *arguments: Any) -> None:
    """Call a hook of either kind in a task of akadze's own; what is no Exception comes out as HookFailed.

    It would end that task, and with it the worker. A cancellation of the task itself is let through, and so is
    KeyboardInterrupt: somebody may have pressed Ctrl-C in a test run.
    """
    try:
        await async_call_hook(hook, *arguments)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise _failed(hook, error) from error


async def async_call_in_worker(hook: Hook, *arguments: Any) -> None:
    """The same in a worker, where a KeyboardInterrupt is the hook's own: Ctrl-C sets the stop signal there."""
    try:
        await async_call_watcher(hook, *arguments)
    except KeyboardInterrupt as error:
        raise _failed(hook, error) from error


def within(seconds: float, hooks: Sequence[Hook]) -> list[Hook]:
    """Return the same hooks, each an async one that raises HookHung when a call takes longer than this.

    It does so, too, when the hook has swallowed its cancellation: the others have waited for it all the same.
    """
    return [_within(seconds, hook) for hook in hooks]


def _within(seconds: float, hook: Hook) -> Hook:
    async def call(*arguments: Any) -> None:
        scope = asyncio.timeout(seconds)
        cause: BaseException | None = None
        try:
            async with scope:
                await async_call_in_worker(hook, *arguments)
        except Exception as error:
            if not scope.expired():
                raise
            # That of a timeout tells where the hook was; the first Pythons 3.11 have it as the context.
            cause = error.__cause__ or (error.__context__ if isinstance(error, TimeoutError) else None) or error
        if scope.expired():
            raise HookHung(f"the hook {name_of(hook)} took longer than {seconds:g} s") from cause

    return call


def sync_call_watcher(hook: Hook, *arguments: Any) -> None:
    """Call a plain hook; what is no Exception comes out as HookFailed.

    KeyboardInterrupt in the main thread is let through: somebody may have pressed Ctrl-C in a test run.
    """
    try:
        sync_call_hook(hook, *arguments)
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise _failed(hook, error) from error


def _failed(hook: Hook, error: BaseException) -> HookFailed:
    return HookFailed(f"the hook {name_of(hook)} raised {type(error).__name__}")


def sync_call_hook(hook: Hook, *arguments: Any) -> None:
    """Call a plain hook; one that turns out to be async is an AkadzeError."""
    result = called(hook, *arguments)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise AkadzeError(
            f"the hook {name_of(hook)} is async, but it was called from blocking code: make it a plain function"
        )


def _plain_context(hook: Hook, given: Any) -> AbstractContextManager[Any]:
    if not isinstance(given, AbstractContextManager):
        raise HookMisfit(
            f"the around_run hook {name_of(hook)} gave {with_article(type(given))}: it has to return a context "
            "manager, as a function under contextlib.contextmanager does"
        )
    return given


async def async_call_within(hooks: Sequence[Hook], job: Job, body: Callable[[], Awaitable[Any]]) -> Any:
    """Await the body inside the context managers of the around_run hooks."""
    async with AsyncExitStack() as stack:
        for hook in hooks:
            context = called(hook, job)
            if isinstance(context, AbstractAsyncContextManager):
                await stack.enter_async_context(context)
            else:
                stack.enter_context(_plain_context(hook, context))
        return await body()
    return None


def sync_call_within(hooks: Sequence[Hook], job: Job, body: Callable[[], Any]) -> Any:
    """Call the body inside the context managers of the around_run hooks; an async one is an AkadzeError."""
    with ExitStack() as stack:
        for hook in hooks:
            context = called(hook, job)
            if isinstance(context, AbstractAsyncContextManager) and not isinstance(context, AbstractContextManager):
                raise AkadzeError(
                    f"the around_run hook {name_of(hook)} gave an async context manager, but task {job.task!r} is a "
                    "plain function: give it a plain one"
                )
            stack.enter_context(_plain_context(hook, context))
        return body()
    return None
