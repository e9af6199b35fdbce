"""The fires of a schedule, one after another."""

from __future__ import annotations

from datetime import datetime, timedelta

from akadze._cron import Cron, Every

_INSTANT = timedelta(microseconds=1)


def between(trigger: Cron | Every, start: datetime, end: datetime) -> list[datetime]:
    """Return the fires from ``start`` until before ``end``."""
    fires: list[datetime] = []
    fire = trigger.next_after(start - _INSTANT)
    while fire < end:
        fires.append(fire)
        fire = trigger.next_after(fire)
    return fires
