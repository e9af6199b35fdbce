"""Retention: what is old enough is deleted, in small batches."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from akadze._connections import async_caller
from akadze._statement import statement

_DELETE_OLD_JOBS = statement("cleanup", "delete_old_jobs")
_DELETE_DEAD_WORKERS = statement("cleanup", "delete_dead_workers")
_DELETE_OLD_STARTS = statement("cleanup", "delete_old_starts")
_DELETE_OLD_PERIODIC_RUNS = statement("schedules", "delete_old_periodic_runs")

#: Seconds between two walks, at most.
_PERIOD = 60.0
#: A hundred years: before long the database has no instants that are as far back as a timedelta may say.
_LONGEST = timedelta(days=36_500)
#: How long the marks of slots stay that belong to schedules of another app, whose grace is not known here.
_OF_OTHERS = timedelta(days=400)


class Cleanup:
    """Walks along the finished jobs a batch at a time, then deletes what else is old."""

    def __init__(self, retention: timedelta, grace: timedelta, scheduled: Iterable[str]) -> None:
        """``scheduled``: the names of the tasks that this app has schedules for."""
        self._retention = min(retention, _LONGEST).total_seconds()
        # A periodic run that is forgotten within the grace could be enqueued again.
        self._of_runs = min(max(retention, grace), _LONGEST)
        self._scheduled = sorted(set(scheduled))
        self._period = min(_PERIOD, max(1.0, self._retention / 2))
        self._after = 0
        self.next_at = time.monotonic() + self._period / 2

    def due(self, now: float) -> bool:
        return now >= self.next_at

    async def step(self, connection: AsyncConnection) -> bool:
        """Delete one batch in a transaction of its own; tell whether the walk goes on."""
        async with connection.begin():
            caller = async_caller(connection)
            row = (await caller.rows(_DELETE_OLD_JOBS, after=self._after, retention=self._retention))[0]
        if row["more"]:
            self._after = row["last_id"]
            return True
        self._after = 0
        async with connection.begin():
            caller = async_caller(connection)
            await caller.rows(
                _DELETE_OLD_PERIODIC_RUNS,
                scheduled=self._scheduled,
                retention=self._of_runs,
                of_others=max(self._of_runs, _OF_OTHERS),
            )
            await caller.rows(_DELETE_DEAD_WORKERS)
            await caller.rows(_DELETE_OLD_STARTS)
        self.next_at = time.monotonic() + self._period
        return False
