"""Schedules: slots that are due become jobs, each once however many workers look."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from akadze import _rows
from akadze._connections import async_caller
from akadze._log import get_logger
from akadze._schedules import Schedule, due, next_due
from akadze._statement import statement
from akadze._worker.connect import is_spent
from akadze.hooks import hung_in, told, within

if TYPE_CHECKING:
    from akadze.app import Akadze

logger = get_logger("akadze.worker")

_READ_CLOCK = statement("schedules", "read_clock")
_LOCK_TASK = statement("schedules", "lock_task")
_FIRE_SLOT = statement("schedules", "fire_slot")
_READ_JOBS = statement("jobs", "read_jobs")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Seconds until a fire that was held back, or that failed, is tried again.
_AGAIN: Final = 0.5
#: Seconds for which a task does not fire whose hook hung, at most: a part of the grace, so that it is tried again.
_HUNG_FOR: Final = 60.0
_HUNG_SHARE: Final = 1 / 4
#: Seconds between two looks at the database's clock, at most: it may be set, and the worker's own may have stood still.
_LONGEST: Final = 10.0


class _Outcome(Enum):
    FIRED = auto()
    DONE = auto()  # by somebody else
    HELD = auto()  # the previous job is not finished, or another worker is at this task
    FAILED = auto()  # a hook raised


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """What one pass did."""

    fired: int
    held: int
    failed: int
    next_in: float
    """Seconds from the end of the pass until there may be something to do."""


class Schedules:
    """Fires the schedules of an app. What it remembers only spares statements: any number of processes may do this."""

    def __init__(self, app: Akadze, *, hook_patience: float = 10.0) -> None:
        self._app = app
        self._hook_patience = hook_patience
        #: Tasks whose hooks hung, each with the moment from which they are called again; they come last, too.
        self._hung: dict[str, float] = {}
        self._done: set[tuple[str, datetime]] = set()
        #: How often hooks have failed for a slot: those that fail come last, and keep no other waiting.
        self._failures: Counter[tuple[str, datetime]] = Counter()

    async def step(self, connection: AsyncConnection, *, now: datetime | None = None) -> ScheduleReport:
        """Make one pass: read the database's clock and fire what is due, each slot in a transaction of its own.

        ``connection`` is READ COMMITTED and not in a transaction. ``now`` stands for the database's clock in tests. An
        error of an ``on_enqueue`` hook is logged, and its slot is tried again at later passes until it is older than
        the app's grace; so is a hook that hangs, less often. Raises what the database raises.
        """
        schedules = self._app._schedules  # noqa: SLF001 - the app's own part
        if not schedules:
            return ScheduleReport(fired=0, held=0, failed=0, next_in=_LONGEST)
        if now is None:
            async with connection.begin():
                [clock] = await async_caller(connection).rows(_READ_CLOCK)
            now = _EPOCH + timedelta(microseconds=clock["microseconds"])
        read_at = time.monotonic()
        slots = due(schedules, now, self._app.grace)
        # What is not due any more need not be remembered.
        known = {(schedule.task, slot) for schedule, slot in slots}
        self._done &= known
        self._failures = Counter({key: count for key, count in self._failures.items() if key in known})
        outcomes: list[_Outcome] = []
        upcoming = next_due(schedules, now)
        assert upcoming is not None
        next_in = min((upcoming - now).total_seconds(), _LONGEST)
        for schedule, slot in sorted(slots, key=self._hope):
            if (schedule.task, slot) in self._done:
                continue
            if self._is_paused(schedule.task):
                # The slot may be older than the grace by the time that is looked at for another reason.
                next_in = min(next_in, self._hung[schedule.task] - read_at)
                continue
            outcomes.append(await self._fire(connection, schedule, slot))
            if outcomes[-1] is _Outcome.FAILED:
                self._failures[schedule.task, slot] += 1
            if is_spent(connection) or self._is_paused(schedule.task):
                # The caller gives the next pass another connection, and has time for one hook that hangs.
                break
        held, failed = outcomes.count(_Outcome.HELD), outcomes.count(_Outcome.FAILED)
        if held or failed:
            next_in = min(next_in, _AGAIN)
        return ScheduleReport(
            fired=outcomes.count(_Outcome.FIRED),
            held=held,
            failed=failed,
            next_in=max(0.0, next_in - (time.monotonic() - read_at)),
        )

    def _is_paused(self, task: str) -> bool:
        return self._hung.get(task, 0.0) > time.monotonic()

    def _hope(self, found: tuple[Schedule, datetime]) -> tuple[bool, int]:
        schedule, slot = found
        return schedule.task in self._hung, self._failures[schedule.task, slot]

    async def _fire(self, connection: AsyncConnection, schedule: Schedule, slot: datetime) -> _Outcome:
        hook_error: Exception | None = None
        async with connection.begin() as transaction:
            caller = async_caller(connection)
            [lock] = await caller.rows(_LOCK_TASK, task=schedule.task)
            if not lock["locked"]:
                return _Outcome.HELD
            [row] = await caller.rows(
                _FIRE_SLOT,
                task=schedule.task,
                slot=slot,
                queue=schedule.queue,
                overlap=schedule.overlap,
                max_attempts=self._app.tasks[schedule.task].max_attempts,
            )
            if row["id"] is not None and self._app.hooks.on_enqueue:
                # Hooks may raise anything; it is logged below.
                try:
                    async with caller.savepoint():
                        await self._announce(caller, row["id"])
                except Exception as error:
                    hook_error = error
                    if connection.in_transaction():  # else the hook has ended it
                        await transaction.rollback()
        if hook_error is not None:
            logger.error(
                "schedule of task %s: an on_enqueue hook failed, so its slot %s was not enqueued: %s",
                schedule.task,
                slot.isoformat(),
                told(hung_in(hook_error) or hook_error),
            )
            if hung_in(hook_error) is not None:
                pause = min(_HUNG_FOR, self._app.grace.total_seconds() * _HUNG_SHARE)
                self._hung[schedule.task] = time.monotonic() + pause
            return _Outcome.FAILED
        if row["held"] and not row["done"]:
            return _Outcome.HELD
        self._done.add((schedule.task, slot))
        if row["id"] is None:
            return _Outcome.DONE
        self._hung.pop(schedule.task, None)
        logger.debug("job %s of task %s was enqueued for its slot %s", row["id"], schedule.task, slot.isoformat())
        return _Outcome.FIRED

    async def _announce(self, caller: Any, job_id: int) -> None:
        [row] = await caller.rows(_READ_JOBS, ids=[job_id])
        job = _rows.job(row)
        for hook in within(self._hook_patience, self._app.hooks.on_enqueue):
            await hook(caller.connection, job)
