"""How long a job waits before its next attempt. Chance comes in as a number."""

from __future__ import annotations

import inspect
from datetime import timedelta

from akadze.outcomes import BackoffPolicy

__all__ = ["clamp", "default_backoff", "next_delay"]

_LONGEST = timedelta(days=365)
_DEFAULT_CAP_SECONDS = 300


def default_backoff(attempt: int, random: float) -> timedelta:
    """Return 2^(n-1) seconds, at most 300, times 0.5 to 1 as ``random`` goes from 0 to 1."""
    doublings = min(max(attempt - 1, 0), 9)  # 2^9 is past the cap, and 2^(2^31) is no number to build
    seconds = min(2**doublings, _DEFAULT_CAP_SECONDS)
    return timedelta(seconds=seconds * (0.5 + random / 2))


def next_delay(policy: BackoffPolicy | None, attempt: int, random: float) -> tuple[timedelta, str | None]:
    """Return the delay after the attempt of this number failed, 0 to 365 days, and a warning for the log or None.

    A policy that raises or returns no timedelta is replaced by the default backoff; the warning says so.
    """
    if policy is None:
        return default_backoff(attempt, random), None
    try:
        delay = policy(attempt)
    except BaseException as error:  # sys.exit() in a policy is to end no worker, nor send the job round and round
        wrong = f"raised {type(error).__name__}"
    else:
        if isinstance(delay, timedelta):
            return clamp(delay), None
        if inspect.iscoroutine(delay):
            delay.close()
        wrong = f"returned a value of type {type(delay).__name__}, not a timedelta"
    fallback = default_backoff(attempt, random)
    return fallback, f"the task's backoff {wrong} for attempt {attempt}; the default backoff is used"


def clamp(delay: timedelta) -> timedelta:
    """Return the delay, moved into 0 to 365 days."""
    return min(max(delay, timedelta(0)), _LONGEST)
