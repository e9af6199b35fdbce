"""What becomes of a job when a run of it has ended. Pure: time and chance come in as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from akadze._backoff import clamp, next_delay
from akadze._failure import failure, failure_in_ascii
from akadze._states import CANCELLED, FAILED, QUEUED, SUCCEEDED
from akadze.outcomes import BackoffPolicy, Cancel, Fail, Retry, Snooze

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Move:
    """One way out of running, as finish_runs takes it. None leaves the column as it is."""

    state: str
    attempt: int | None = None
    snoozes: int | None = None
    delay: float | None = None
    error: Mapping[str, str] | None = None
    result: str | None = None
    warning: str | None = None

    def outcome(self, job_id: int, run: int) -> str:
        """Return the JSON object for finish_runs."""
        if self.error is None and self.delay is None and self.attempt is None and self.snoozes is None:
            result = "null" if self.result is None else self.result
            return f'{{"id":{job_id},"run":{run},"state":"{self.state}","result":{result}}}'
        fields: dict[str, Any] = {"id": job_id, "run": run, "state": self.state}
        for name in ("attempt", "snoozes", "delay", "error"):
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        return json.dumps(fields)


#: Back to the queue as it was: at shutdown, at the end of a lease, for a claim whose answer was lost.
HAND_BACK = Move(QUEUED)

_SUCCEEDED = Move(SUCCEEDED)


def returned(result: str | None) -> Move:
    """The body returned; ``result`` is its value as JSON text."""
    return _SUCCEEDED if result is None else Move(SUCCEEDED, result=result)


def raised(
    error: BaseException,
    *,
    attempt: int,
    max_attempts: int,
    snoozes: int,
    backoff: BackoffPolicy | None,
    now: datetime,
    random: float,
) -> Move:
    """The body raised ``error``; ``attempt`` is the number of attempts spent before this run.

    A cancel request wins over all of these when the move is written.
    """
    match error:
        case Snooze():
            return Move(QUEUED, snoozes=min(snoozes + 1, _MOST), delay=_seconds(clamp(error.delay)))
        case Cancel():
            return Move(CANCELLED, error=failure(error, now) if error.reason else None)
    attempt = min(attempt + 1, _MOST)
    entry = failure(error, now)
    if isinstance(error, Fail) or attempt >= max_attempts:
        return Move(FAILED, attempt=attempt, error=entry)
    warning = None
    if isinstance(error, Retry) and error.delay is not None:
        delay = clamp(error.delay)
    else:
        delay, warning = next_delay(backoff, attempt, random)
    return Move(QUEUED, attempt=attempt, delay=_seconds(delay), error=entry, warning=warning)


def in_ascii(outcome: str) -> Move | None:
    """Return the move of an outcome with its error in ASCII, None where there is nothing to change."""
    fields = json.loads(outcome)
    error = fields.get("error")
    if error is None or (plain := failure_in_ascii(error)) == error:
        return None
    return Move(fields["state"], fields.get("attempt"), fields.get("snoozes"), fields.get("delay"), plain)


def _seconds(delay: timedelta) -> float:
    return delay.total_seconds()
