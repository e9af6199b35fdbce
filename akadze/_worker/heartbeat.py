"""The heartbeat: this worker's lease on its jobs."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

from akadze._log import get_logger
from akadze._sqlstates import is_transient
from akadze._statement import statement
from akadze._worker.connect import HeldRaw
from akadze._worker.ending import end_tasks
from akadze._worker.outage import Outage, Outages
from akadze.app import Akadze
from akadze.errors import AkadzeError

logger = get_logger("akadze.worker")

_INSERT_WORKER = statement("workers", "insert_worker")
_BEAT = statement("workers", "beat")
_DELETE_WORKER = statement("workers", "delete_worker")


#: Added to what a lost lease says, if the loop stood still for most of it: the database is not the one to look at.
_STOOD_STILL: Final = (
    "; its event loop stood still for {:.1f} s: an async task that blocks (a plain function may), or a frozen process"
)
#: How many beats that hang fit into a lease.
_TRIES: Final = 3
#: Seconds that a beat has to end after each of two cancellations; less where the lease is short.
_TO_END: Final = 0.1


class LeaseLost(AkadzeError):
    """No heartbeat succeeded within heartbeat_ttl."""


class Heartbeat:
    """Beats in a task of its own, on a connection of its own, and knows when the lease ends.

    The lease is counted by this machine's monotonic clock from the start of the last good beat. The database stores the
    beat's time by its own clock, which is not earlier, so the lease ends here before anybody rescues the jobs.
    """

    def __init__(
        self,
        app: Akadze,
        worker_id: UUID,
        queues: Sequence[str],
        *,
        interval: timedelta,
        ttl: timedelta,
        rewritten: Callable[[], None],
        outages: Outages,
    ) -> None:
        self._outages = outages
        self._app = app
        self._id = str(worker_id)
        self._queues = list(queues)
        self._interval = interval.total_seconds()
        self._ttl = ttl.total_seconds()
        self._to_end = min(_TO_END, self._ttl / 20)
        self._rewritten = rewritten
        self._held: HeldRaw | None = None
        self._good = time.monotonic()
        #: Seconds for which the loop stood still at a stretch, at most, since the start of the last good beat.
        self._late = 0.0
        #: The worker's row may be there.
        self.registered = False

    @property
    def left(self) -> float:
        """Seconds until the lease ends."""
        return self._good + self._ttl - time.monotonic()

    async def register(self) -> None:
        """Write the worker's row: the first beat."""
        await self._send(insert=True)

    async def step(self) -> None:
        """Beat once. The row is written again if somebody deleted it."""
        if not await self._send(insert=False):
            logger.warning("the row of worker %s was gone and is written again", self._id)
            await self._send(insert=True)
            self._rewritten()

    async def keep(self) -> None:
        """Beat until cancelled; raise LeaseLost when the lease has ended, and what is not transient as it is."""
        outage = Outage(self._outages, "heartbeat")
        while True:
            pause = max(min(self._interval - (time.monotonic() - self._good), self.left), 0)
            with self._within(pause):
                await asyncio.sleep(pause)
            before, self._late, allowed = self._late, 0.0, self._patience()
            try:
                with self._within(allowed):
                    await self._try(allowed)
                if self.left <= 0:
                    raise TimeoutError("the answer was read after the lease had ended")
                outage.over()
            except Exception as error:
                self._late = max(self._late, before)
                await self._drop()
                if self.left <= 0:
                    stood_still = self._late > self._ttl / 2
                    raise LeaseLost(
                        f"no heartbeat of this worker succeeded within {self._ttl:g} s: its jobs may be taken by "
                        f"others, so it stops{_STOOD_STILL.format(self._late) if stood_still else ''}"
                    ) from error
                if not is_transient(error):
                    raise
                begun = time.monotonic()
                seconds = await outage.wait(error, most=min(self.left, self._ttl / _TRIES))
                self._late = max(self._late, time.monotonic() - begun - seconds)

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Note by how much a wait of at most so long was longer: it is the loop that stood still."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._late = max(self._late, time.monotonic() - begun - max(seconds, 0))

    def _patience(self) -> float:
        """Seconds that a beat has now: in time for another try, and before the lease ends."""
        return min(self.left - 2 * self._to_end, max(self._interval, self._ttl / _TRIES))

    async def _try(self, patience: float) -> None:
        """Beat once, and give up what hangs for longer than this."""
        beat = asyncio.create_task(self.step(), name="akadze-beat")
        try:
            await asyncio.wait([beat], timeout=max(patience, 0))
            if not beat.done():
                raise TimeoutError(f"no answer within {max(patience, 0):.1f} s")
            beat.result()
        finally:
            # Not by asyncio.timeout: the lease does not wait until the driver heeds a cancellation.
            await end_tasks([beat], patience=self._to_end, first=self._to_end)

    async def close(self) -> None:
        """Close the connection, and leave the row to whoever deletes those of dead workers."""
        await self._drop()

    async def unregister(self) -> None:
        """Delete the worker's row, when its jobs have been handed back."""
        try:
            await self._delete()
        except Exception as error:
            if not is_transient(error):
                raise
            # The connection may have died since the last beat.
            await self._drop()
            await self._delete()
        finally:
            await self._drop()

    async def _delete(self) -> None:
        if self._held is None:
            self._held = await HeldRaw.open(self._app.engine)
        await self._held.rows(_DELETE_WORKER, id=self._id)

    async def _send(self, *, insert: bool) -> bool:
        start = time.monotonic()
        if self._held is None:
            self._held = await HeldRaw.open(self._app.engine)
        if insert:
            self.registered = True
            rows = await self._held.rows(
                _INSERT_WORKER,
                id=self._id,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                queues=self._queues,
                ttl=self._ttl,
            )
        else:
            rows = await self._held.rows(_BEAT, id=self._id)
        if rows:
            self._good = start
        return bool(rows)

    async def _drop(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                await held.close()
            except Exception as error:
                if not is_transient(error):
                    raise
