"""Django's database connections around the run of a task, as Django treats them around a request."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from akadze._drivers import is_django
from akadze.context import RUN
from akadze.errors import AkadzeError
from akadze.job import Job

#: How many atomic blocks were open on each alias when a body began that drain runs on a session.
OPEN_BLOCKS: ContextVar[Mapping[str, int]] = ContextVar("akadze_open_blocks", default=MappingProxyType({}))

#: The status of a psycopg connection, 2 or 3, whose transaction waits for a rollback.
_IN_ERROR = 3


class FreshConnections:
    """The hook around_run: plain and async context manager in one.

    A plain function finds the connections of its thread checked, and leaves none open for longer than CONN_MAX_AGE. An
    async function has, as a request to an async view, a thread of its own for what it does through ``sync_to_async``,
    and its connections end with it. Inside atomic blocks, which only a test can have open here, nothing is closed.

    Under a drain on Django's connection the body is in a savepoint, because in the transaction of a test an error of
    the database would be the end of it. The savepoint is undone after such an error only: in a worker, too, what a body
    has written before an error of its own stays.
    """

    def __init__(self, _job: Job) -> None:
        self._own_thread: Any = ThreadSensitiveContext()
        self._alias = _drained_alias()
        self._savepoint: str | None = None

    def __enter__(self) -> None:
        close_old()
        if self._alias is not None:
            OPEN_BLOCKS.set(self._begin(self._alias))

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._savepoint is not None:
            self._end(error)
        close_old()

    async def __aenter__(self) -> None:
        await self._own_thread.__aenter__()
        if self._alias is not None:
            OPEN_BLOCKS.set(await sync_to_async(self._begin)(self._alias))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._savepoint is not None:
                await sync_to_async(self._end)(error)
            if self._has_a_thread():
                await sync_to_async(_close_all)()
        finally:
            await self._own_thread.__aexit__(kind, error, traceback)

    def _has_a_thread(self) -> bool:
        """Whether the body has used it: to start one only to close nothing would cost more than a short body."""
        threads = getattr(SyncToAsync, "context_to_thread_executor", None)
        return threads is None or self._own_thread in threads

    def _begin(self, alias: str) -> Mapping[str, int]:
        if connections[alias].in_atomic_block:
            self._savepoint = connections[alias].savepoint()
        return {each.alias: len(each.atomic_blocks) for each in connections.all(initialized_only=True)}

    def _end(self, error: BaseException | None) -> None:
        connection = connections[self._alias]
        raw = connection.connection
        broken = connection.needs_rollback or (raw is not None and raw.info.transaction_status == _IN_ERROR)
        if broken:
            connection.needs_rollback = False
            connection.savepoint_rollback(self._savepoint)
        connection.savepoint_commit(self._savepoint)
        if broken and error is None:
            raise AkadzeError(
                "the task went on after an error of the database, which in the transaction of a test undoes what it "
                "wrote: put what may fail into atomic()"
            )


def _drained_alias() -> str | None:
    """The alias of Django's connection that a drain works on."""
    run: Any = RUN.get()
    joined = getattr(run, "joined", None)
    return str(joined.connection.alias) if joined is not None and is_django(joined.connection) else None


def close_old() -> None:
    """Close this thread's connections that are unusable or too old."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _close_all() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
