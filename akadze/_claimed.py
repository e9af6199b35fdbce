"""A job that a worker or a drain has claimed, and its run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from akadze import _rows
from akadze._connections import AsyncCaller, SyncCaller, autocommits
from akadze._states import RUNNING
from akadze.app import Akadze
from akadze.errors import AkadzeError
from akadze.job import Job
from akadze.task import Task

#: One row of claim_plain or take_chosen, in the order of its columns.
ClaimedRow = tuple[Any, ...]

ID, TASK, QUEUE, PRIORITY, ARGS, NUMBER, RUN_AT = 0, 1, 2, 3, 4, 6, 10


class ClaimedRun:
    """The run of one claimed job. Whole rows are made into a Job only when somebody asks."""

    __slots__ = (
        "_claimed_at",
        "_errors",
        "_job",
        "_meta",
        "app",
        "args",
        "attempt",
        "cancel_requested_at",
        "completed",
        "expires_at",
        "finishing",
        "id",
        "joined",
        "limit_key",
        "max_attempts",
        "number",
        "priority",
        "queue",
        "run_at",
        "running",
        "snoozes",
        "started_at",
        "taken_back",
        "task",
        "unique_key",
        "worker_id",
    )

    app: Akadze
    args: str
    attempt: int
    cancel_requested_at: datetime | None
    expires_at: datetime | None
    id: int
    limit_key: str | None
    max_attempts: int
    number: int
    priority: int
    queue: str
    run_at: datetime
    snoozes: int
    started_at: datetime
    unique_key: str | None

    def __init__(
        self, app: Akadze, worker_id: UUID, row: ClaimedRow, joined: AsyncCaller | SyncCaller | None = None
    ) -> None:
        (
            self.id,
            task,
            self.queue,
            self.priority,
            self.args,
            self._meta,
            self.number,
            self.attempt,
            self.max_attempts,
            self.snoozes,
            self.run_at,
            self.expires_at,
            self.unique_key,
            self.limit_key,
            self.cancel_requested_at,
            self._errors,
            self.started_at,
        ) = row
        self.app = app
        #: The session that drain works on, where it was given one.
        self.joined = joined
        self.task: Task[Any] = app.tasks[task]
        self.worker_id = worker_id
        self.completed = False
        self.finishing = False
        self.taken_back = False
        self.running: asyncio.Task[None] | None = None
        self._job: Job | None = None
        self._claimed_at = time.monotonic()

    def now(self) -> datetime:
        """The database's time, as far as it is known here: that of the start and what has passed since.

        This machine's own clock may be wrong, and an error would seem older than its run.
        """
        return self.started_at.astimezone(UTC) + timedelta(seconds=time.monotonic() - self._claimed_at)

    def is_of(self, row: ClaimedRow) -> bool:
        """Tell whether a row with this run's id and number is of the same job.

        It need not be: after a failover that lost the last commits the server hands ids out again.
        """
        return (self.task.name, self.run_at, self.args) == (row[TASK], row[RUN_AT], row[ARGS])

    def disown(self) -> None:
        """Let this run write nothing any more, under a number that no run has: its own belongs to another job."""
        _ = self.job  # as it was claimed
        self.number = -self.number

    @property
    def job(self) -> Job:
        if self._job is None:
            self._job = _rows.job(
                {
                    "id": self.id,
                    "task": self.task.name,
                    "queue": self.queue,
                    "priority": self.priority,
                    "state": RUNNING,
                    "args": self.args,
                    "run_count": self.number,
                    "attempt": self.attempt,
                    "max_attempts": self.max_attempts,
                    "snoozes": self.snoozes,
                    "unique_key": self.unique_key,
                    "limit_key": self.limit_key,
                    "worker_id": self.worker_id,
                    "errors": self._errors,
                    "result": None,
                    "cancel_requested_at": self.cancel_requested_at,
                    "expires_at": self.expires_at,
                    "expired": False,
                    "meta": self._meta,
                }
            )
        return self._job

    def async_transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._async_begin() if self.joined is None else self._async_savepoint()

    def sync_transaction(self) -> AbstractContextManager[Any]:
        return self._sync_begin() if self.joined is None else self._sync_savepoint()

    @asynccontextmanager
    async def _async_begin(self) -> AsyncIterator[Any]:
        async with self.app.engine.begin() as connection:
            if connection.sync_connection is not None and autocommits(connection.sync_connection):
                raise AkadzeError(_AUTOCOMMIT.format(engine="engine"))
            yield connection

    @contextmanager
    def _sync_begin(self) -> Iterator[Any]:
        with self.app.sync_engine.begin() as connection:
            if autocommits(connection):
                raise AkadzeError(_AUTOCOMMIT.format(engine="sync_engine"))
            yield connection

    @asynccontextmanager
    async def _async_savepoint(self) -> AsyncIterator[Any]:
        savepoint = self.joined.savepoint() if self.joined is not None else None
        if not isinstance(savepoint, AbstractAsyncContextManager):
            raise AkadzeError(_OTHER_COLOUR.format(kind="an async", other="a blocking", call="akadze.testing.drain"))
        async with savepoint:
            yield self.joined.connection  # type: ignore[union-attr]  # it has given the savepoint

    @contextmanager
    def _sync_savepoint(self) -> Iterator[Any]:
        savepoint = self.joined.savepoint() if self.joined is not None else None
        if not isinstance(savepoint, AbstractContextManager) or isinstance(savepoint, AbstractAsyncContextManager):
            raise AkadzeError(_OTHER_COLOUR.format(kind="a plain", other="an async", call="akadze.sync.testing.drain"))
        with savepoint:
            yield self.joined.connection  # type: ignore[union-attr]  # it has given the savepoint


_AUTOCOMMIT = (
    "complete_tx cannot take back what a block writes on the app's {engine}, whose isolation level is AUTOCOMMIT: give "
    "the app an engine with transactions"
)
_OTHER_COLOUR = (
    "complete_tx of {kind} task cannot work on {other} session, which drain was given: drain with {call} and a "
    "session of its colour, or without one"
)
