"""Prometheus text for jobs, lag, busy, and pauses."""

from __future__ import annotations

from akadze._async.queues import read_pauses, read_snapshot
from akadze._connections import async_reading
from akadze._prometheus import Family, render
from akadze._session_types import AnyAsyncSource


async def render_metrics(engine: AnyAsyncSource) -> str:
    """Return Prometheus exposition text for jobs, lag, busy, and pauses. Reads committed rows, writes nothing.

    Serve it as ``text/plain; version=0.0.4; charset=utf-8``. Raises AkadzeError for what cannot be read from.
    """
    async with async_reading(engine) as caller:
        snapshot = await read_snapshot(caller)
        paused = await read_pauses(caller)
    queues = sorted({count.queue for count in snapshot.counts} | set(paused))
    lag = snapshot.lag.total_seconds() if snapshot.lag is not None else 0.0
    return render(
        [
            Family(
                "akadze_jobs",
                "Jobs by queue and state.",
                [({"queue": count.queue, "state": count.state}, count.jobs) for count in snapshot.counts],
            ),
            Family("akadze_queue_lag_seconds", "How long the oldest ready job has waited.", [({}, lag)]),
            Family("akadze_worker_busy", "Jobs that are running.", [({}, snapshot.busy)]),
            Family(
                "akadze_queue_paused",
                "Whether claims from the queue are paused.",
                [({"queue": queue}, int(queue in paused)) for queue in queues],
            ),
        ]
    )
