"""FastAPI, and any other web framework with a lifespan: a worker in the process of the web application.

Enqueue needs nothing from here: pass the session of the request to ``Task.using``. FastAPI itself is not imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypedDict, Unpack

from akadze._async.schema import check_schema
from akadze._connections import async_reading
from akadze._failure import name_of
from akadze._log import get_logger
from akadze._sqlstates import first_line
from akadze._urls import without_password
from akadze.app import Akadze
from akadze.worker import Worker

__all__ = ["WorkerOptions", "lifespan_worker"]

logger = get_logger("akadze.worker")


class WorkerOptions(TypedDict, total=False):
    """The options of ``Worker``."""

    queues: list[str] | None
    slots: int
    heartbeat_interval: timedelta
    heartbeat_ttl: timedelta
    poll_interval: timedelta
    shutdown_timeout: timedelta
    fair: bool
    notify: bool


@asynccontextmanager
async def lifespan_worker(
    app: Akadze, *, on_failure: Callable[[BaseException], object] | None = None, **options: Unpack[WorkerOptions]
) -> AsyncIterator[Worker]:
    """Serve a worker beside the block, on the same loop, and stop it cleanly at the end of the block.

    Open it in the lifespan of the web application. ``options`` are those of ``Worker``. Async tasks share the loop with
    the requests, so one that computes for long holds them up; plain functions run in threads. At the end it waits up to
    ``shutdown_timeout`` for running jobs and hands the rest back, as a worker does at a signal.

    Raises, before the block begins, AkadzeError if the app has no tasks, the options are not allowed or the database is
    not migrated, and the driver's error if it cannot be read. If an error stops the worker later, the block goes on
    without it: that is logged at once, the error is given to ``on_failure``, and raised at the end of the block. Jobs
    wait for other workers then, so ``on_failure`` is the place to end the process, if there are none.
    """
    worker = Worker(app, **options)
    async with async_reading(app.engine) as caller:
        await check_schema(caller)
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop), name="akadze-lifespan-worker")
    await asyncio.wait({serving}, timeout=0)
    if serving.done():
        serving.result()

    def ended(_: asyncio.Task[None]) -> None:
        error = None if serving.cancelled() else serving.exception()
        if error is not None and not stop.is_set():
            logger.error("the worker in this process has stopped by an error: its jobs wait for other workers")
            if on_failure is not None:
                on_failure(error)

    serving.add_done_callback(ended)
    try:
        yield worker
    except BaseException:
        await _stopped(serving, stop, quietly=True)
        raise
    await _stopped(serving, stop, quietly=False)


async def _stopped(serving: asyncio.Task[None], stop: asyncio.Event, *, quietly: bool) -> None:
    stop.set()
    try:
        await serving
    except Exception as error:
        if not quietly:
            raise
        # Without its other lines: there the database quotes rows.
        logger.error(
            "the worker in this process failed while it was stopped: %s: %s",
            name_of(error),
            without_password(first_line(error)),
        )
