"""Workers: list."""

from __future__ import annotations

from akadze import _rows
from akadze._connections import async_reading
from akadze._session_types import AnyAsyncSource
from akadze._statement import statement
from akadze.summaries import WorkerSummary

_LIST_WORKERS = statement("workers", "list_workers")


async def list_workers(engine: AnyAsyncSource) -> tuple[WorkerSummary, ...]:
    """Return registered workers, the latest heartbeat first, then by id. Does not mutate state.

    A worker that was lost is among them until others have taken its jobs back, and a minute longer. Raises AkadzeError
    for what cannot be read from.
    """
    async with async_reading(engine) as caller:
        rows = await caller.rows(_LIST_WORKERS)
    return tuple(_rows.worker_summary(row) for row in rows)
