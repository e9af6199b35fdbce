"""The job that is being run, as its body sees it: both colours side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from akadze._async import transitions as _async_transitions
from akadze._connections import async_caller, sync_caller
from akadze._statement import statement
from akadze._states import RUNNING, SUCCEEDED
from akadze._sync import transitions as _sync_transitions
from akadze.app import Akadze
from akadze.errors import AkadzeError, EnqueueError, RunLost
from akadze.hooks import refuse_async
from akadze.job import Job

if TYPE_CHECKING:
    from akadze.task import Task

__all__ = ["Context", "SyncContext", "current"]

_COMPLETE_RUN = statement("finish", "complete_run")
_MARK_TRANSACTION = statement("session", "mark_transaction")
_FIND_MARK = statement("session", "find_mark")


class Run(Protocol):
    """What a context needs of the run that it belongs to; the worker and drain have one each."""

    app: Akadze
    worker_id: UUID
    id: int
    task: Task[Any]
    number: int
    #: Set once a complete_tx block has committed: the job is finished, whatever the body does then.
    completed: bool
    #: While a complete_tx block is open.
    finishing: bool

    @property
    def job(self) -> Job:
        """The job as it was claimed."""

    def async_transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open what complete_tx yields: a transaction of the app's engine, or a savepoint on drain's session."""

    def sync_transaction(self) -> AbstractContextManager[Any]:
        """The same, blocking."""


RUN: ContextVar[Run | None] = ContextVar("akadze_run", default=None)


class Context:
    """Handle for the job executing on this asyncio task."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def job(self) -> Job:
        """The job, as it was when it was claimed."""
        return self._run.job

    def complete_tx(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Yield a connection. On a clean exit the job is finished in that transaction.

        What the block writes on the connection and the job's success commit together. An error inside the block rolls
        the writes back and is an error of the run like any other. Raises RunLost, and rolls the writes back, if this
        run no longer owns the job. What the body returns after the block is not stored. AkadzeError if the job has
        been finished by an earlier block or one is open, the block has committed or rolled back by itself, the app's
        engine is in autocommit, or this is a plain function.
        """
        # Both modules have a current(); `with` on an async block would say nothing of the other one.
        if not _in_loop():
            raise AkadzeError(
                "complete_tx of akadze.current() has to be awaited: in a plain function use akadze.sync.current()"
            )
        return self._complete_tx()

    @asynccontextmanager
    async def _complete_tx(self) -> AsyncIterator[AsyncConnection]:
        run, hooks = self._run, self._run.app.hooks.on_transition
        with _finishing(run):
            async with run.async_transaction() as connection:
                await async_caller(connection).rows(_MARK_TRANSACTION)
                yield connection
                try:
                    caller = async_caller(connection)
                except EnqueueError:
                    raise _ended(run) from None
                rows = await caller.rows(_COMPLETE_RUN, id=run.id, worker=str(run.worker_id), run=run.number)
                _check(run, rows)
                await _async_transitions.tell(caller, hooks, [run.id], RUNNING, SUCCEEDED)
                if hooks and not (await caller.rows(_FIND_MARK))[0]["marked"]:
                    raise _ended(run)


class SyncContext:
    """Handle for the job executing on this thread."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def job(self) -> Job:
        """The job, as it was when it was claimed."""
        return self._run.job

    def complete_tx(self) -> AbstractContextManager[Connection]:
        """Yield a blocking connection. On a clean exit the job is finished in that transaction.

        The same as ``Context.complete_tx``, for plain functions. AkadzeError if an ``on_transition`` hook is async:
        nothing can be awaited here; and in an async function, whose loop the block would hold up.
        """
        if self._run.task.is_async and _in_loop():
            raise AkadzeError(
                "complete_tx of akadze.sync.current() would hold up the loop that this async function runs on: use "
                "akadze.current(), and `async with`"
            )
        return sync_complete_in(self._run, self._run.sync_transaction)


@contextmanager
def sync_complete_in(run: Run, transaction: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """Yield what ``transaction`` yields, and on a clean exit finish the job on it; see ``complete_tx``."""
    hooks = run.app.hooks.on_transition
    refuse_async(
        hooks,
        "on_transition",
        error=AkadzeError,
        call="complete_tx of a plain function",
        instead="make the task async",
    )
    with _finishing(run), transaction() as connection:
        sync_caller(connection).rows(_MARK_TRANSACTION)
        yield connection
        try:
            caller = sync_caller(connection)
        except EnqueueError:
            raise _ended(run) from None
        _check(run, caller.rows(_COMPLETE_RUN, id=run.id, worker=str(run.worker_id), run=run.number))
        _sync_transitions.tell(caller, hooks, [run.id], RUNNING, SUCCEEDED)
        if hooks and not caller.rows(_FIND_MARK)[0]["marked"]:
            raise _ended(run)


def current() -> Context:
    """Return the handle of the job that this code runs in. Raises AkadzeError outside a job."""
    return Context(running("akadze.current()"))


def sync_current() -> SyncContext:
    """Return the handle of the job that this code runs in. Raises AkadzeError outside a job."""
    return SyncContext(running("akadze.sync.current()"))


def running(call: str) -> Run:
    """Return the run that this code is part of. Raises AkadzeError, which names the call, outside a job."""
    run = RUN.get()
    if run is None:
        raise AkadzeError(f"{call} was called outside a job: it works in a task body that a worker or drain runs")
    return run


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _finishing(run: Run) -> Iterator[None]:
    """Let one block at a time finish the run: what an outer one has written would be lost to an inner one's success."""
    if run.completed:
        raise AkadzeError(f"job {run.id} has been finished by complete_tx already: a run finishes once")
    if run.finishing:
        raise AkadzeError(
            f"complete_tx is open already in this run of job {run.id}, and finishes it once: write on the connection "
            "of that block"
        )
    run.finishing = True
    try:
        yield
        run.completed = True
    finally:
        run.finishing = False


def _check(run: Run, finished: list[dict[str, Any]]) -> None:
    """Raise if the run no longer owns its job, or the block has ended its transaction, and another has begun since."""
    if not finished:
        raise _lost(run)
    if not finished[0]["marked"]:
        raise _ended(run)


def _ended(run: Run) -> AkadzeError:
    return AkadzeError(
        f"the transaction of complete_tx was ended inside its block, so job {run.id} cannot be finished in it: "
        "leave commit() and rollback() to complete_tx, also in on_transition hooks, and do without `reset all`"
    )


def _lost(run: Run) -> RunLost:
    return RunLost(f"run {run.number} no longer owns job {run.id}: its lease ended, and the block is rolled back")
