"""Upkeep: rescue, cancellations, schedules, retention, unknown tasks, one after another on one connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from akadze._async.transitions import LONGEST, cancel_doomed, rescue
from akadze._connections import async_caller
from akadze._log import get_logger
from akadze._sqlstates import is_transient
from akadze._worker.cleanup import Cleanup
from akadze._worker.connect import close_held, is_spent, open_held
from akadze._worker.left_alone import LeftAlone
from akadze._worker.outage import Outage, Outages
from akadze._worker.schedules import Schedules
from akadze._worker.unknown_tasks import UnknownTasks
from akadze.app import Akadze
from akadze.hooks import HookHung, Spoilt, within

logger = get_logger("akadze.worker")

#: Seconds that one transaction may take. One that takes longer waits for a connection that has died in silence.
_PATIENCE = 60.0
#: How many batches of one duty are done before the others have their turn.
_BATCHES = 10
#: Seconds for which a job is left alone whose hook raised, and one whose hook did not return.
_REFUSED_FOR = 1.0
_HUNG_FOR = 60.0
#: Seconds that the hooks of one batch have at least.
_SHORTEST = 0.05


class Upkeep:
    """Does what is due, in small transactions, and looks at the stop signal in between.

    The loop tells what it has seen (``lost``, ``doomed``, ``unknown``); schedules, retention and the look for unknown
    tasks have times of their own.
    """

    def __init__(
        self,
        app: Akadze,
        worker_id: UUID,
        queues: Sequence[str],
        outages: Outages,
        *,
        hook_patience: float,
        lease_left: Callable[[], float],
    ) -> None:
        self._lease_left = lease_left
        self._app = app
        self._worker_id = worker_id
        self._hook_patience = hook_patience
        self._unrescued = LeftAlone()
        self._uncancelled = LeftAlone()
        #: Seconds that the hooks of one batch have, less where the server ends a transaction that takes so long.
        self._longest = LONGEST
        self._outages = outages
        self._queues = list(queues)
        self._schedules = Schedules(app, hook_patience=hook_patience)
        self._cleanup = Cleanup(app.retention, app.grace, [each.task for each in app._schedules])  # noqa: SLF001 - own part
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
        await self._open()
        more = False
        if self._lost:
            self._lost = False
            more = await self._rescue() or more
        if self._doomed:
            self._doomed = False
            more = await self._cancel_doomed() or more
        connection = await self._open()  # a hook that hung has cost the first
        now = time.monotonic()
        if now >= self._next_fire:
            async with asyncio.timeout(_PATIENCE + self._hook_patience):
                report = await self._schedules.step(connection)
            self._next_fire = time.monotonic() + report.next_in
            if is_spent(connection):
                # What SQLAlchemy gives up it leaves open, with its locks.
                await self._drop()
                connection = await self._open()
        if self._cleanup.due(now):
            async with asyncio.timeout(_PATIENCE):
                more = await self._cleanup.step(connection) or more
        if self._unknown_tasks.due(now):
            async with asyncio.timeout(_PATIENCE):
                await self._unknown_tasks.step(connection)
        return more

    async def _open(self) -> AsyncConnection:
        if self._connection is None:
            async with asyncio.timeout(_PATIENCE):
                self._connection = await open_held(self._app.engine)
        return self._connection

    async def _rescue(self) -> bool:
        for _ in range(_BATCHES):
            if self._lease_left() <= 0:
                return False  # frozen, perhaps with the others, who are about to hand their jobs back
            rows = await self._move(partial(rescue, rescuer=self._worker_id), self._unrescued)
            if rows is None:
                return False
            for row in rows:
                logger.warning(
                    "job %s of lost worker %s was taken back, now %s", row["id"], row["worker_id"], row["state"]
                )
            if self._fire_is_due():
                break
        self._lost = True
        return True

    async def _cancel_doomed(self) -> bool:
        for _ in range(_BATCHES):
            if await self._move(partial(cancel_doomed, queues=self._queues), self._uncancelled) is None:
                return False
            if self._fire_is_due():
                break
        self._doomed = True
        return True

    def _fire_is_due(self) -> bool:
        """Tell whether the schedules have their turn: with slow hooks the batches may take longer than the grace."""
        return time.monotonic() >= self._next_fire

    async def _move(
        self, move: Callable[..., Awaitable[list[dict[str, Any]]]], left_alone: LeftAlone
    ) -> list[dict[str, Any]] | None:
        """Move a batch of jobs; None if there is none, or a hook hung, which is enough for this round."""
        hooks = within(self._hook_patience, self._app.hooks.on_transition)
        refused: set[int] = set()
        connection = await self._open()
        try:
            async with asyncio.timeout(_PATIENCE + self._hook_patience), connection.begin():
                rows = await move(
                    async_caller(connection), hooks, apart=left_alone.ids(), refused=refused, longest=self._longest
                )
        except HookHung as hung:
            left_alone.add(refused, _REFUSED_FOR)
            left_alone.add([hung.job_id] if hung.job_id is not None else [], _HUNG_FOR)
            await self._drop()
            return None
        except Spoilt:
            # By an outage or by the hook: either way its job can wait for a second, and the others go on.
            left_alone.add(refused, _REFUSED_FOR)
            await self._drop()
            self._longest = max(self._longest / 2, _SHORTEST)
            return []
        self._longest = min(self._longest * 2, LONGEST)
        if not rows and not refused:
            left_alone.none_else()
            return None
        left_alone.add(refused, _REFUSED_FOR)
        return rows

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
