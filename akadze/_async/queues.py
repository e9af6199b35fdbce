"""Queues: snapshot, pause, resume."""

from __future__ import annotations

from datetime import timedelta

from akadze._connections import AsyncCaller, async_caller, async_reading
from akadze._options import check_queue
from akadze._session_types import AnyAsyncSession, AnyAsyncSource
from akadze._statement import statement
from akadze._states import RUNNING
from akadze.errors import AkadzeError
from akadze.summaries import QueueSnapshot, StateCount

_COUNT_JOBS = statement("queues", "count_jobs")
_MEASURE_LAG = statement("queues", "measure_lag")
_PAUSE_QUEUE = statement("queues", "pause_queue")
_RESUME_QUEUE = statement("queues", "resume_queue")
_WAKE_QUEUE = statement("queues", "wake_queue")
_LIST_PAUSES = statement("queues", "list_pauses")


async def queue_snapshot(engine: AnyAsyncSource) -> QueueSnapshot:
    """Return depth, lag of the oldest ready job, and how many jobs are running. Reads committed rows.

    A job is ready when a claim could take it now; those of a paused queue are not. Raises AkadzeError for what cannot
    be read from.
    """
    async with async_reading(engine) as caller:
        return await read_snapshot(caller)


async def read_snapshot(caller: AsyncCaller) -> QueueSnapshot:
    rows = await caller.rows(_COUNT_JOBS)
    counts = tuple(StateCount(queue=row["queue"], state=row["state"], jobs=row["jobs"]) for row in rows)
    lag = (await caller.rows(_MEASURE_LAG))[0]["lag"]
    return QueueSnapshot(
        counts=counts,
        lag=timedelta(seconds=float(lag)) if lag is not None else None,
        busy=sum(count.jobs for count in counts if count.state == RUNNING),
    )


async def read_pauses(caller: AsyncCaller) -> list[str]:
    return [row["queue"] for row in await caller.rows(_LIST_PAUSES)]


async def list_paused_queues(engine: AnyAsyncSource) -> tuple[str, ...]:
    """Return the names of the paused queues, in order. Raises AkadzeError for what cannot be read from."""
    async with async_reading(engine) as caller:
        return tuple(await read_pauses(caller))


async def pause_queue(session: AnyAsyncSession, queue: str) -> None:
    """Stop new claims from this queue, in the transaction of the session. Running jobs finish. Idempotent.

    Raises AkadzeError for a name that no queue can have, or a session that cannot be used.
    """
    await async_caller(session, error=AkadzeError).rows(_PAUSE_QUEUE, queue=check_queue(queue))


async def resume_queue(session: AnyAsyncSession, queue: str) -> None:
    """Allow claims from this queue again, in the transaction of the session. Idempotent if it was not paused.

    Raises AkadzeError for a name that no queue can have, or a session that cannot be used.
    """
    caller = async_caller(session, error=AkadzeError)
    checked = check_queue(queue)
    await caller.rows(_RESUME_QUEUE, queue=checked)
    await caller.rows(_WAKE_QUEUE, queue=checked)
