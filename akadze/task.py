"""A registered task, and how it is bound to a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, overload

from akadze._arguments import Arguments
from akadze._article import shown
from akadze._async.bound import BoundTask
from akadze._connections import is_async_session, is_sync_session, refuse_session
from akadze._options import check_name, check_queue, check_task_options
from akadze._session_types import AnyAsyncSession, AnySyncSession
from akadze._sync.bound import BoundTask as SyncBoundTask
from akadze.errors import AkadzeError
from akadze.outcomes import BackoffPolicy

if TYPE_CHECKING:
    from akadze.app import Akadze

__all__ = ["BoundTask", "SyncBoundTask", "Task"]

P = ParamSpec("P")

#: Calls of a task that other queues have, or that a task has once it is bound to a session.
_NOT_HERE = ("enqueue", "enqueue_many", "delay", "apply_async")

_ENQUEUE = "task.using(session=connection).enqueue(...)"

BoundTask.__module__ = __name__
SyncBoundTask.__module__ = __name__


class Task(Generic[P]):
    """A registered task. ``@app.task`` and ``app.register`` return one.

    Enqueue it through ``using``: ``await task.using(session=connection).enqueue(...)``. ``fn`` is the function itself.
    """

    def __init__(
        self,
        app: Akadze,
        name: str,
        fn: Callable[P, Any],
        *,
        queue: str,
        max_attempts: int,
        timeout: timedelta | None,
        priority: int,
        backoff: BackoffPolicy | None = None,
    ) -> None:
        if isinstance(fn, Task):
            raise AkadzeError(f"task {name!r} is an object of type Task; the function of a task is task.fn")
        check_task_options(name, queue, max_attempts, timeout, priority, backoff)
        self.app = app
        # Plain text: drivers write the member of a str enum by its name.
        self.name = check_name("a task's name", name)
        self.fn = fn
        self.queue = check_queue(queue)
        self.max_attempts = max_attempts
        self.timeout = timeout
        self.priority = priority
        self.backoff = backoff
        self.arguments = Arguments(name, fn)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Say where an enqueue goes to those who expect it here."""
            hint = f": write {_ENQUEUE}" if name in _NOT_HERE else ""
            raise AttributeError(f"'Task' object has no attribute {name!r}{hint}", name=name, obj=self)

        def __call__(self, *_: Any, **__: Any) -> Any:
            """Say what to write to those who call a task: elsewhere that enqueues, or runs the function."""
            raise TypeError(f"'Task' object is not called: write {_ENQUEUE}, or task.fn(...) to call the function")

    @property
    def is_async(self) -> bool:
        """Whether the body is awaited; a plain function runs in a thread of the worker."""
        return self.arguments.is_async

    @overload
    def using(
        self,
        *,
        session: AnyAsyncSession,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        unique_key: str | None = None,
        limit_key: str | None = None,
        expires_at: datetime | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> BoundTask[P]: ...

    @overload
    def using(
        self,
        *,
        session: AnySyncSession,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        unique_key: str | None = None,
        limit_key: str | None = None,
        expires_at: datetime | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> SyncBoundTask[P]: ...

    def using(
        self,
        *,
        session: Any,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        unique_key: str | None = None,
        limit_key: str | None = None,
        expires_at: datetime | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> BoundTask[P] | SyncBoundTask[P]:
        """Bind enqueue options; the jobs are inserted on ``session``, in its transaction.

        An async session gives a bound task whose calls are awaited, a blocking one a bound task whose calls block.
        ``delay`` (a timedelta) or ``run_at`` (an aware datetime) set the earliest start. ``priority`` and
        ``max_attempts`` override the task's defaults for these jobs. While a job with ``unique_key`` is queued or
        running, another enqueue with that key raises DuplicateJob; keys are shared across all tasks and queues.
        ``limit_key`` names the limits that apply (see ``set_limit``). A job not started by ``expires_at`` (aware) is
        cancelled. ``meta`` is a small JSON object with string keys, at most 8 KiB, for filtering and hooks; not for
        arguments or secrets. An empty key means none.

        Raises EnqueueError for options that are not allowed, or a session that cannot be used.
        """
        kind: type[BoundTask[P] | SyncBoundTask[P]]
        if is_async_session(session):
            kind = BoundTask
        elif is_sync_session(session):
            kind = SyncBoundTask
        else:
            raise refuse_session(session)
        return kind(
            self,
            session=session,
            delay=delay,
            run_at=run_at,
            priority=self.priority if priority is None else priority,
            max_attempts=self.max_attempts if max_attempts is None else max_attempts,
            unique_key=unique_key,
            limit_key=limit_key,
            expires_at=expires_at,
            meta=meta,
        )


def task_name(task: object) -> str:
    """Return the name of a task that is given as itself or by its name. Raises AkadzeError for anything else."""
    if isinstance(task, str):
        return task
    if not isinstance(task, Task):
        raise AkadzeError(f"task is {shown(task)}: pass a task, or its name")
    return task.name
