"""Wake-ups by NOTIFY. They only make the worker look sooner: polling stays the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from uuid import UUID

from akadze._log import get_logger
from akadze._sqlstates import is_transient
from akadze._statement import statement
from akadze._worker.connect import HeldRaw, listen_url
from akadze._worker.outage import Outage, Outages
from akadze.app import Akadze

logger = get_logger("akadze.worker")

_LISTEN = statement("session", "listen")
_NOTIFY = statement("session", "notify")
#: How long a notification to oneself may take, in seconds.
_PATIENCE = 3.0
#: How long the server may take to answer, in seconds; the connection is given up then.
_LOST = 30.0
#: How often a listener that hears nothing tests itself, in seconds: its connection may have died in silence.
_TEST_EVERY = 60.0
#: How long to wait before listening is tried again where notifications do not arrive, in seconds.
_TRY_AGAIN = 300.0


class Wakeup:
    """Listens on a connection of its own and calls ``wake`` for notifications of the worker's queues.

    ``works`` tells whether notifications arrive. A worker tests its own listening by notifying itself; where nothing
    arrives (a pooler in transaction mode) it says so once, and the worker polls. Raises AkadzeError for a malformed
    AKADZE_LISTEN_URL.
    """

    def __init__(
        self,
        app: Akadze,
        worker_id: UUID,
        queues: Collection[str],
        *,
        wake: Callable[[], None],
        outages: Outages,
    ) -> None:
        self._outages = outages
        self._app = app
        self._queues = frozenset(queues)
        self._wake = wake
        # No queue has this name: it holds a line feed and this worker's id.
        self._test = f"akadze.test\n{worker_id}"
        # Read here, so that a malformed one is told before anything is claimed.
        self._url = listen_url()
        self._said = False
        self.works = False

    async def keep(self) -> None:
        """Listen until cancelled, connecting anew after errors."""
        outage = Outage(self._outages, "listening")
        while True:
            try:
                async with asyncio.timeout(_LOST):
                    held = await HeldRaw.open(self._app.engine, url=self._url)
                try:
                    await self._listen(held, outage)
                finally:
                    self.works = False
                    await held.close()
            except Exception as error:
                if not is_transient(error):
                    raise
                await outage.wait(error)
                self._wake()
            else:
                await asyncio.sleep(_TRY_AGAIN)

    async def _listen(self, held: HeldRaw, outage: Outage) -> None:
        """Return when notifications do not arrive here."""
        if held.direct:
            await held.rows(_LISTEN)
        while True:
            # Behind a pooler the test could by chance meet the server process that listens: the pids tell. That process
            # would go on listening, too, and its next client knows nothing of it.
            heard = held.direct
            if heard:
                async with asyncio.timeout(_LOST):
                    await held.rows(_NOTIFY, payload=self._test)
                heard = await self._hear(held, _PATIENCE, test=True)
            if not heard:
                if not self._said:
                    self._said = True
                    logger.warning(
                        "notifications do not arrive on this connection (a pooler in transaction mode does not pass "
                        "them on): new jobs are found by polling; AKADZE_LISTEN_URL may name a direct connection"
                    )
                return
            outage.over()
            if not self.works:
                self.works = True
                self._wake()
            while await self._hear(held, _TEST_EVERY, test=False):
                pass

    async def _hear(self, held: HeldRaw, patience: float, *, test: bool) -> bool:
        """Wait for a notification (the test's own if ``test``); False if none came in time.

        Otherwise any will do, also one that is for others: it shows that they arrive. To test the connection after such
        a one would be to answer it, and workers that answer each other never stop.
        """
        heard = False
        async for notification in held.raw.notifies(timeout=patience, stop_after=None if test else 1):
            if notification.payload in self._queues:
                self._wake()
            heard = not test or notification.payload == self._test
            if heard and test:
                break
        return heard
