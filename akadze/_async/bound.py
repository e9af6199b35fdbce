"""Enqueue: a task bound to the caller's session and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from akadze import _rows
from akadze._article import with_article
from akadze._async.transitions import tell
from akadze._connections import AsyncCaller, async_caller
from akadze._copy_lines import copy_lines
from akadze._options import new_job
from akadze._psycopg import async_copier
from akadze._session_types import AnyAsyncSession
from akadze._sqlstates import missing_tables_noted
from akadze._statement import statement
from akadze._states import CANCELLED, QUEUED
from akadze.errors import DuplicateJob, EnqueueError
from akadze.hooks import async_call_hook, refuse_async
from akadze.job import Job

if TYPE_CHECKING:
    from akadze.task import Task

P = ParamSpec("P")

_INSERT_JOB = statement("enqueue", "insert_job")
_INSERT_UNIQUE_JOB = statement("enqueue", "insert_unique_job")
_INSERT_JOBS = statement("enqueue", "insert_jobs")
_COPY_JOBS = statement("enqueue", "copy_jobs")
_COPY_SIMPLE_JOBS = statement("enqueue", "copy_simple_jobs")
_WAKE_QUEUE = statement("queues", "wake_queue")

# One jsonb value holds 255 MiB at the most; its binary form can be larger than the text.
_MOST_BYTES = 100_000_000
#: Jobs from which COPY is faster, with its two more round trips.
_MANY = 200


class BoundTask(Generic[P]):
    """A task bound to a session and enqueue options; ``Task.using`` returns one."""

    def __init__(
        self,
        task: Task[P],
        *,
        session: AnyAsyncSession,
        delay: timedelta | None,
        run_at: datetime | None,
        priority: int,
        max_attempts: int,
        unique_key: str | None,
        limit_key: str | None,
        expires_at: datetime | None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._task = task
        self._session = session
        async_caller(session)  # what cannot be used is refused here already
        self._new = new_job(
            task.name,
            task.queue,
            priority=priority,
            max_attempts=max_attempts,
            delay=delay,
            run_at=run_at,
            unique_key=unique_key,
            limit_key=limit_key,
            expires_at=expires_at,
            meta=meta,
        )

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Insert one job with these arguments (by name), in the transaction of the session. Returns nothing.

        Raises EnqueueError on positional or invalid arguments, and DuplicateJob when ``unique_key`` is held by a job
        that is queued or running. Neither inserts a row, and the caller's transaction stays usable. An error of an
        ``on_enqueue`` hook is raised as it is, with the same effect; so is one of an ``on_transition`` hook, where the
        key's holder is dead (expired, or asked to cancel) and is ended here.
        """
        if args:
            raise EnqueueError(f"task {self._task.name!r} takes its arguments by name: pass them as keywords")
        await self._enqueue(kwargs)

    async def _enqueue(self, arguments: Mapping[str, Any]) -> int:
        """The same, and return the job's id."""
        # Anew at each call: the transaction in which the task was bound may be over.
        caller = async_caller(self._session)
        text = _checked_size(self._task.arguments.to_json(arguments))
        hooks = self._task.app.hooks
        on_enqueue = hooks.on_enqueue
        on_transition = hooks.on_transition if self._new.unique_key is not None else []
        if True:  # ASYNC
            watched = bool(on_enqueue or on_transition)
        else:
            refuse_async(on_enqueue, "on_enqueue")
            refuse_async(on_transition, "on_transition")
            watched = bool(on_enqueue or on_transition)
        if not watched:
            job_id = (await self._insert(caller, text))["id"]
        else:
            async with caller.savepoint():
                row = await self._insert(caller, text)
                job_id = row["id"]
                if on_transition and row["ended_id"] is not None:
                    await tell(caller, on_transition, [row["ended_id"]], QUEUED, CANCELLED)
                if on_enqueue and job_id is not None:
                    await _announce(caller, on_enqueue, _rows.enqueued(self._new, job_id, text))
        if job_id is None:
            raise DuplicateJob(
                f"task {self._task.name!r} was not enqueued: a queued or running job already holds this unique_key"
            )
        return int(job_id)

    async def enqueue_many(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Insert one job per item (arguments by name) with the shared options, in the order of the items.

        All items are validated before anything is inserted, and all are inserted or none, in autocommit too. Raises
        EnqueueError as ``enqueue`` does, and when a ``unique_key`` is set: that applies to one job.
        """
        if self._new.unique_key is not None:
            raise EnqueueError("unique_key applies to one job: leave it out here, or enqueue the jobs one by one")
        caller = async_caller(self._session)
        if (isinstance(items, Mapping) and items) or not _is_iterable(items):
            raise EnqueueError(f"items is {with_article(type(items))}: give a list of mappings, one for each job")
        texts = self._task.arguments.all_to_json(items)
        if not texts:
            return
        on_enqueue = self._task.app.hooks.on_enqueue
        if True:  # ASYNC
            watched = bool(on_enqueue)
        else:
            refuse_async(on_enqueue, "on_enqueue")
            watched = bool(on_enqueue)
        text = _checked_size(f"[{','.join(texts)}]")
        copier = async_copier(caller) if len(texts) >= _MANY and not watched and self._new.due else None
        if copier is not None:
            with missing_tables_noted():
                await copier.copy(_COPY_SIMPLE_JOBS if self._new.simple else _COPY_JOBS, copy_lines(self._new, texts))
            await caller.rows(_WAKE_QUEUE, queue=self._new.queue)
        elif not watched:
            await self._insert_many(caller, text, ids=False)
        else:
            async with caller.savepoint():
                for job_id, one in zip(await self._insert_many(caller, text, ids=True), texts, strict=True):
                    await _announce(caller, on_enqueue, _rows.enqueued(self._new, job_id, one))

    async def _insert(self, caller: AsyncCaller, text: str) -> dict[str, Any]:
        shared = self._new.shared()
        with missing_tables_noted():
            if self._new.unique_key is None:
                rows = await caller.rows(_INSERT_JOB, **shared, args=text)
            else:
                rows = await caller.rows(_INSERT_UNIQUE_JOB, **shared, args=text, unique_key=self._new.unique_key)
        return rows[0]

    async def _insert_many(self, caller: AsyncCaller, text: str, *, ids: bool) -> list[int]:
        with missing_tables_noted():
            rows = await caller.rows(_INSERT_JOBS, **self._new.shared(), items=text, ids=ids)
        return rows[0]["ids"] or []


async def _announce(caller: AsyncCaller, hooks: list[Any], job: Job) -> None:
    for hook in hooks:
        await async_call_hook(hook, caller.connection, job)


def _is_iterable(items: object) -> bool:
    # Not by iter(): a TypeError of the caller's own __iter__ has to come out as it is.
    return isinstance(items, Iterable) or hasattr(type(items), "__getitem__")


def _checked_size(text: str) -> str:
    size = len(text) if text.isascii() else len(text.encode())
    if size > _MOST_BYTES:
        raise EnqueueError(
            f"the arguments take {size} bytes as JSON, and {_MOST_BYTES} are allowed in one call: "
            "keep large data elsewhere and pass a reference, or enqueue in several calls"
        )
    return text
