"""Upkeep: rescue, cancellations, schedules, retention, unknown tasks, one after another on one connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from akadze._async.transitions import cancel_doomed, rescue
from akadze._connections import async_caller
from akadze._log import get_logger
from akadze._sqlstates import is_transient
from akadze._worker.cleanup import Cleanup
from akadze._worker.connect import close_held, open_held
from akadze._worker.outage import Outage, Outages
from akadze._worker.schedules import Schedules
from akadze._worker.unknown_tasks import UnknownTasks
from akadze.app import Akadze

logger = get_logger("akadze.worker")

#: Seconds that one transaction may take. One that takes longer waits for a connection that has died in silence.
_PATIENCE = 60.0
#: How many batches of one duty are done before the others have their turn.
_BATCHES = 10


class Upkeep:
    """Does what is due, in small transactions, and looks at the stop signal in between.

    The loop tells what it has seen (``lost``, ``doomed``, ``unknown``); schedules, retention and the look for unknown
    tasks have times of their own.
    """

    def __init__(self, app: Akadze, queues: Sequence[str], outages: Outages) -> None:
        self._app = app
        self._outages = outages
        self._queues = list(queues)
        self._schedules = Schedules(app)
        self._cleanup = Cleanup(app.retention, app.grace)
        self._unknown_tasks = UnknownTasks(app, queues)
        self._connection: AsyncConnection | None = None
        self._kick = asyncio.Event()
        self._lost = False
        self._doomed = False
        self._next_fire = 0.0

    def tell(self, *, lost: bool = False, doomed: bool = False, unknown: bool = False) -> None:
        """Note what has to be done, and start it."""
        new = self._unknown_tasks.tell(unknown)
        self._lost = self._lost or lost
        self._doomed = self._doomed or doomed
        if lost or doomed or new:
            self._kick.set()

    async def keep(self, stopping: asyncio.Event) -> None:
        """Work until ``stopping`` is set or this is cancelled; raise what is not transient."""
        outage = Outage(self._outages, "upkeep")
        try:
            while not stopping.is_set():
                try:
                    more = await self.step()
                    outage.over()
                except Exception as error:
                    await self._drop()
                    if not is_transient(error):
                        raise
                    await outage.wait(error)
                    continue
                if not more:
                    await self._rest()
        finally:
            await self._drop()

    async def step(self) -> bool:
        """Do one round of what is due; tell whether there is more to do at once."""
        if self._connection is None:
            async with asyncio.timeout(_PATIENCE):
                self._connection = await open_held(self._app.engine)
        connection = self._connection
        more = False
        if self._lost:
            self._lost = False
            more = await self._rescue(connection) or more
        if self._doomed:
            self._doomed = False
            more = await self._cancel_doomed(connection) or more
        now = time.monotonic()
        if now >= self._next_fire:
            async with asyncio.timeout(_PATIENCE):
                report = await self._schedules.step(connection)
            self._next_fire = time.monotonic() + report.next_in
        if self._cleanup.due(now):
            async with asyncio.timeout(_PATIENCE):
                more = await self._cleanup.step(connection) or more
        if self._unknown_tasks.due(now):
            async with asyncio.timeout(_PATIENCE):
                await self._unknown_tasks.step(connection)
        return more

    async def _rescue(self, connection: AsyncConnection) -> bool:
        hooks = self._app.hooks.on_transition
        for _ in range(_BATCHES):
            async with asyncio.timeout(_PATIENCE), connection.begin():
                rows = await rescue(async_caller(connection), hooks)
            for row in rows:
                logger.warning(
                    "job %s of lost worker %s was taken back, now %s", row["id"], row["worker_id"], row["state"]
                )
            if not rows:
                return False
        self._lost = True
        return True

    async def _cancel_doomed(self, connection: AsyncConnection) -> bool:
        hooks = self._app.hooks.on_transition
        for _ in range(_BATCHES):
            async with asyncio.timeout(_PATIENCE), connection.begin():
                rows = await cancel_doomed(async_caller(connection), hooks, self._queues)
            if not rows:
                return False
        self._doomed = True
        return True

    async def _rest(self) -> None:
        now = time.monotonic()
        pause = max(0.0, min(self._next_fire, self._cleanup.next_at, self._unknown_tasks.next_at) - now)
        try:
            async with asyncio.timeout(pause):
                await self._kick.wait()
        except TimeoutError:
            pass
        self._kick.clear()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await close_held(connection)
            except Exception as error:
                if not is_transient(error):
                    raise
