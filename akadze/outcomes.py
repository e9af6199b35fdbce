"""What a task body raises to end its run in another way than returning."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

__all__ = ["BackoffPolicy", "Cancel", "Fail", "Retry", "Snooze"]

#: Takes the number of the attempt that just failed, returns the delay before the next one. A plain function, or
#: an object whose ``__call__`` is not async.
BackoffPolicy = Callable[[int], timedelta]


class Retry(Exception):
    """Run the job again later. This spends an attempt.

    ``delay`` is a timedelta; without it the task's backoff decides. On the last attempt the job fails.
    """

    def __init__(self, delay: timedelta | None = None) -> None:
        super().__init__("retry requested" if delay is None else f"retry requested in {delay}")
        self.delay = _checked(delay) if delay is not None else None


class Snooze(Exception):
    """Run the job again later, after ``delay`` (a timedelta). This does not spend an attempt."""

    def __init__(self, delay: timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = _checked(delay)


class Fail(Exception):
    """Fail the job now, whatever attempts are left. ``reason`` is kept in the job's errors."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Exception):
    """End the job as cancelled. This does not spend an attempt. ``reason`` is kept in the job's errors."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _checked(delay: timedelta) -> timedelta:
    if not isinstance(delay, timedelta):
        raise TypeError(f"delay must be a timedelta, not {type(delay).__name__}")
    return delay


for _public in (Retry, Snooze, Fail, Cancel):
    _public.__module__ = "akadze"
