"""A worker that serves in the loop of its test, and surely stops with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from akadze import Akadze, Worker, testing
from akadze.sync import testing as blocking
from tests.waiting import PATIENCE, until
from tests.worker.table import Table

#: Short intervals, and a lease that a busy machine does not lose.
OPTIONS: dict[str, Any] = {
    "heartbeat_interval": timedelta(seconds=0.2),
    "heartbeat_ttl": timedelta(seconds=5),
    "poll_interval": timedelta(seconds=0.05),
    "shutdown_timeout": timedelta(seconds=2),
}

Serve = Callable[..., Awaitable["Served"]]

#: What runs jobs.
RUNNERS = ["worker", "drain", "sync drain"]


async def run_ready(runner: str, app: Akadze, serve: Serve) -> None:
    """Run what is ready in one of these ways. A worker has only begun when this returns."""
    if runner == "worker":
        await serve()
    elif runner == "drain":
        await testing.drain(app)
    else:
        await asyncio.to_thread(blocking.drain, app)


class Served:
    """One call of serve. `options` are those of Worker; durations may be numbers of seconds."""

    def __init__(self, app: Akadze, **options: Any) -> None:
        given = {
            name: timedelta(seconds=value) if name in OPTIONS and not isinstance(value, timedelta) else value
            for name, value in options.items()
        }
        self.worker = Worker(app, **{**OPTIONS, **given})
        self.stopping = asyncio.Event()
        self.task = asyncio.create_task(self.worker.serve(self.stopping))
        self._seen = False
        self._id: UUID | None = None

    @property
    def id(self) -> UUID:
        """The worker's id, also when it serves no longer."""
        self._id = self.worker.id or self._id
        assert self._id is not None
        return self._id

    @property
    def up(self) -> bool:
        return not self.task.done()

    async def registered(self, table: Table) -> None:
        """Wait until the worker beats, or has failed."""
        await asyncio.sleep(0)
        await until(lambda: self.task.done() or self.worker.id is not None)
        if self.worker.id is not None:
            await until(
                lambda: self.task.done() or table.value("select true from akadze.workers where id = %s", self.id)
            )

    async def stop(self) -> None:
        """Stop it and wait until it has; raise what serve raised."""
        self.stopping.set()
        await self.join()

    async def join(self, timeout: float = PATIENCE) -> None:
        """Wait until serve returns; raise what it raised."""
        self._seen = True
        await asyncio.wait_for(asyncio.shield(self.task), timeout)

    async def failed(self, timeout: float = PATIENCE) -> BaseException:
        """Wait until serve raises, and return the error."""
        try:
            await self.join(timeout)
        except BaseException as error:
            if not self.task.done():
                raise
            return error
        raise AssertionError("serve returned without an error")

    async def end(self) -> None:
        self.stopping.set()
        self.worker.hurry()
        done, _ = await asyncio.wait([self.task], timeout=PATIENCE)
        if not done:
            self.task.cancel()
            raise AssertionError("the worker does not stop")
        if not self._seen and not self.task.cancelled():
            self.task.result()


@asynccontextmanager
async def workers(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    """Yield a function that starts a worker and waits until it is registered. All stop at the end."""
    served: list[Served] = []

    async def serve(other: Akadze | None = None, **options: Any) -> Served:
        one = Served(other or app, **options)
        served.append(one)
        await one.registered(table)
        return one

    try:
        yield serve
    finally:
        ended = await asyncio.gather(*[one.end() for one in served], return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error
