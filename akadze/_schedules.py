"""Schedules: what they are made of, and which of them are due at an instant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from akadze._cron import Cron, Every
from akadze._options import check_name, check_queue
from akadze._published import publish
from akadze.errors import AkadzeError

__all__ = ["ScheduleSpec"]

_START_OF_TIME = datetime.min.replace(tzinfo=UTC) + timedelta(days=3)


@dataclass(frozen=True)
class ScheduleSpec:
    """One schedule for ``add_schedules``: exactly one of ``cron`` (five fields) and ``every``.

    ``queue`` defaults to the task's queue; ``timezone`` names an IANA zone for ``cron``, UTC by default.
    ``overlap=False`` holds a fire back while the previous job is queued or running, for at most the app's ``grace``.
    """

    name: str
    cron: str | None = None
    every: timedelta | None = None
    overlap: bool = True
    queue: str | None = None
    timezone: str | None = None


publish(ScheduleSpec)

_KEYS = tuple(field.name for field in fields(ScheduleSpec))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that has passed all checks."""

    task: str
    queue: str
    overlap: bool
    trigger: Cron | Every


def make_schedule(
    name: str,
    *,
    cron: str | None,
    every: timedelta | None,
    overlap: bool,
    queue: str | None,
    timezone: str | None,
    default_queue: str,
) -> Schedule:
    """Check what a schedule is registered with. Raises AkadzeError that names the task."""
    task = check_name("a task's name", name)
    try:
        if not isinstance(overlap, bool):
            raise AkadzeError(f"overlap is {type(overlap).__name__}: pass True or False")
        return Schedule(
            task=task,
            queue=check_queue(default_queue if queue is None else queue),
            overlap=overlap,
            trigger=_trigger(cron, every, timezone),
        )
    except AkadzeError as error:
        raise AkadzeError(f"schedule of task {task!r}: {error}") from error.__cause__


def _trigger(cron: str | None, every: timedelta | None, timezone: str | None) -> Cron | Every:
    if (cron is None) == (every is None):
        given = "neither cron nor every is given" if cron is None else "both cron and every are given"
        raise AkadzeError(f"{given}: pass exactly one of the two")
    if cron is not None:
        return Cron(cron, timezone)
    assert every is not None
    if timezone is not None:
        raise AkadzeError("timezone is given with every, which counts from the Unix epoch: leave it out, or use cron")
    return Every(every)


def read_spec(spec: ScheduleSpec | Mapping[str, object]) -> ScheduleSpec:
    """Return a spec as it is, or read it from a mapping with the same names. Raises AkadzeError.

    The values are checked by ``make_schedule``.
    """
    if isinstance(spec, ScheduleSpec):
        return spec
    if not isinstance(spec, Mapping):
        raise AkadzeError(f"a schedule is {type(spec).__name__}: pass a ScheduleSpec or a mapping with its fields")
    unknown = [key for key in spec if key not in _KEYS]
    if unknown:
        raise AkadzeError(f"a schedule has the unknown key {unknown[0]!r}: its keys are {', '.join(_KEYS)}")
    if "name" not in spec:
        raise AkadzeError("a schedule has no name: give it the name of a registered task")
    values: dict[str, Any] = dict(spec)
    return ScheduleSpec(**values)


def due(schedules: Iterable[Schedule], now: datetime, grace: timedelta) -> list[tuple[Schedule, datetime]]:
    """Return the schedules to fire and their slots, oldest first: of each the latest slot, if not older than ``grace``.

    Task and instant are what a slot is: of two schedules of one task with one slot, the first is returned.
    """
    # In UTC: the difference of two instants of one zone would be that of the clocks on its wall.
    now = now.astimezone(UTC)
    not_before = now - grace if grace < now - _START_OF_TIME else _START_OF_TIME
    found: dict[tuple[str, datetime], Schedule] = {}
    for schedule in schedules:
        slot = schedule.trigger.latest(now, not_before)
        if slot is not None:
            found.setdefault((schedule.task, slot), schedule)
    return sorted(((schedule, slot) for (_, slot), schedule in found.items()), key=lambda pair: pair[1])


def next_due(schedules: Iterable[Schedule], now: datetime) -> datetime | None:
    """Return the first slot of any of the schedules after ``now``, None without schedules."""
    return min((schedule.trigger.next_after(now) for schedule in schedules), default=None)
