"""The worker: its options and their checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from akadze._article import shown
from akadze._log import get_logger
from akadze._options import check_queue
from akadze._worker.serving import Serving
from akadze.app import Akadze
from akadze.errors import AkadzeError

__all__ = ["Worker"]

logger = get_logger("akadze.worker")


class Worker:
    """Claims jobs from queues and runs them; also runs schedules and maintenance.

    ``queues`` defaults to all queues of the app's tasks and schedules. ``slots`` is how many jobs run at once per
    queue.
    Liveness is a heartbeat every ``heartbeat_interval``; a worker whose heartbeat is older than ``heartbeat_ttl`` is
    presumed dead: another worker requeues its jobs, spending an attempt with the default backoff (failed on the last
    one). An idle worker polls about every ``poll_interval``; a worker whose slots are all taken claims again as soon as
    one of those runs ends. On stop it waits up to ``shutdown_timeout`` for running jobs, then returns the rest to the
    queue without spending an attempt. ``fair=True`` shares slots across ``limit_key`` groups within a priority instead
    of taking the oldest jobs. ``notify=False`` turns wake-ups by NOTIFY off: new jobs are then found by polling alone.

    ``akadze worker module:app`` builds one and calls ``serve``. Raises AkadzeError for options that are not allowed.
    """

    def __init__(
        self,
        app: Akadze,
        *,
        queues: list[str] | None = None,
        slots: int = 1,
        heartbeat_interval: timedelta = timedelta(seconds=5),
        heartbeat_ttl: timedelta = timedelta(seconds=30),
        poll_interval: timedelta = timedelta(seconds=1),
        shutdown_timeout: timedelta = timedelta(seconds=10),
        fair: bool = False,
        notify: bool = True,
    ) -> None:
        if not isinstance(app, Akadze):
            raise AkadzeError(f"app is of type {type(app).__name__}: pass the Akadze app whose tasks are to be run")
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= 10_000:
            raise AkadzeError(f"slots is {shown(slots)}: it must be a whole number from 1 to 10000")
        for name, value, least in (
            ("heartbeat_interval", heartbeat_interval, timedelta(milliseconds=10)),
            ("heartbeat_ttl", heartbeat_ttl, timedelta(milliseconds=20)),
            ("poll_interval", poll_interval, timedelta(milliseconds=1)),
            ("shutdown_timeout", shutdown_timeout, timedelta(0)),
        ):
            if not isinstance(value, timedelta):
                raise AkadzeError(f"{name} is of type {type(value).__name__}: it must be a timedelta")
            if not least <= value <= timedelta(days=365):
                raise AkadzeError(f"{name} is {value}: it must be from {least} to 365 days")
        if heartbeat_ttl < 2 * heartbeat_interval:
            raise AkadzeError(
                f"heartbeat_ttl is {heartbeat_ttl} and heartbeat_interval {heartbeat_interval}: the ttl must be at "
                "least twice the interval, or one late beat ends the lease"
            )
        if queues is not None:
            # An iterator tells that it is empty only when it is read.
            queues = list(queues) if isinstance(queues, Iterable) and not isinstance(queues, str) else queues
            if not isinstance(queues, list) or not queues:
                raise AkadzeError(
                    f"queues is {shown(queues)}: it must be a list of at least one queue name, or None for all queues "
                    "of the app"
                )
        self.app = app
        self.queues = _queues_of(app) if queues is None else list(dict.fromkeys(map(check_queue, queues)))
        self.slots = slots
        self.heartbeat_interval = heartbeat_interval
        self.heartbeat_ttl = heartbeat_ttl
        self.poll_interval = poll_interval
        self.shutdown_timeout = shutdown_timeout
        self.fair = fair
        self.notify = notify
        #: Queues that nothing in the app uses, and somebody does.
        self._queues_of_others: set[str] = set()
        self._serving: Serving | None = None

    @property
    def id(self) -> UUID | None:
        """The id under which the worker is registered while it serves, None otherwise."""
        return self._serving.id if self._serving is not None else None

    async def serve(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set or no heartbeat succeeds within ``heartbeat_ttl``.

        The heartbeat runs as its own task, so a slow or hung step cannot delay it. When it goes stale, the running jobs
        are stopped and handed back before other workers rescue them, and AkadzeError is raised. A transient database
        error (connection lost, restart, deadlock) is logged and retried with backoff; any other error stops the worker
        and is raised, and so is that of a first connection which fails. AkadzeError, too, if the app has no tasks, if
        the database has not been migrated, or if it does not take the last outcomes at a stop: their jobs then run
        again.
        """
        if not self.app.tasks:
            raise AkadzeError("the app has no tasks: register them (app.task, app.include) before the worker starts")
        if self._serving is not None:
            raise AkadzeError("this worker serves already: make another Worker to serve twice at once")
        used = {*_queues_of(self.app), *self._queues_of_others}
        unused = [queue for queue in self.queues if queue not in used]
        if unused:
            logger.warning(
                "no task and no schedule of the app uses %s, which this worker serves: check the name",
                " or ".join(f"queue {queue!r}" for queue in unused),
            )
        self._serving = Serving(
            self.app,
            queues=self.queues,
            slots=self.slots,
            heartbeat_interval=self.heartbeat_interval,
            heartbeat_ttl=self.heartbeat_ttl,
            poll_interval=self.poll_interval,
            shutdown_timeout=self.shutdown_timeout,
            fair=self.fair,
            notify=self.notify,
        )
        try:
            await self._serving.run(stop)
        finally:
            self._serving = None

    def hurry(self) -> None:
        """After ``stop`` was set: hand back what still runs at once, instead of waiting ``shutdown_timeout``."""
        if self._serving is not None:
            self._serving.hurry()


Worker.__module__ = "akadze"


def _queues_of(app: Akadze) -> list[str]:
    queues = {task.queue for task in app.tasks.values()} | {schedule.queue for schedule in app._schedules}  # noqa: SLF001 - the app's own part
    return sorted(queues) or ["default"]
