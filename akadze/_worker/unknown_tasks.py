"""Tasks that this worker does not know and whose jobs wait in its queues: each is named once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from akadze._connections import async_caller
from akadze._log import get_logger
from akadze._statement import statement
from akadze.app import Akadze

logger = get_logger("akadze.worker")

_FIND_UNKNOWN_TASKS = statement("queues", "find_unknown_tasks")

#: Seconds from the start to the first look, and between two. The loop asks for one as soon as it sees such a job.
_FIRST: Final = 5.0
_PERIOD: Final = 60.0


class UnknownTasks:
    """Looks for such jobs, which stay queued and block nobody, and so would be missed in silence."""

    def __init__(self, app: Akadze, queues: Sequence[str]) -> None:
        self._app = app
        self._queues = list(queues)
        self._told: set[str] = set()
        self._seen = False
        self.next_at = time.monotonic() + _FIRST

    def tell(self, seen: bool) -> bool:
        """Note whether the loop sees any; return whether that is new, and a look is due."""
        new = seen and not self._seen
        self._seen = seen
        if new:
            self.next_at = time.monotonic()
        return new

    def due(self, now: float) -> bool:
        return now >= self.next_at

    async def step(self, connection: AsyncConnection) -> None:
        async with connection.begin():
            rows = await async_caller(connection).rows(
                _FIND_UNKNOWN_TASKS, queues=self._queues, tasks=sorted({*self._app.tasks, *self._told})
            )
        for row in rows:
            if row["task"] not in self._told:
                self._told.add(row["task"])
                logger.warning(
                    "queue %r holds jobs of task %r, which the app of this worker does not have: they stay queued "
                    "until a worker whose app has it serves the queue",
                    row["queue"],
                    row["task"],
                )
        self.next_at = time.monotonic() + _PERIOD
