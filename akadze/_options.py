"""Every check of what a caller may set: at registration, at enqueue, and in the calls that manage queues and limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from akadze._article import shown, with_article
from akadze._signature import is_async
from akadze.errors import AkadzeError, EnqueueError

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_META_BYTES",
    "NewJob",
    "check_job_id",
    "check_key",
    "check_limit",
    "check_limit_key",
    "check_meta",
    "check_name",
    "check_number",
    "check_queue",
    "check_task_options",
    "new_job",
]

#: Keys and names are in B-tree indexes, whose entries hold about 2,700 bytes together.
MAX_KEY_BYTES = 512
MAX_META_BYTES = 8192
_MAX_META_DEPTH = 100
_MAX_INT = 2**31 - 1
_MAX_ID = 2**63 - 1
#: A hundred years. PostgreSQL and Python both hold any instant that is this far from now.
_MAX_DELAY = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class NewJob:
    """The options of jobs to insert, all checked. ``delay`` is in seconds, ``meta`` the text of a JSON object."""

    task: str
    queue: str
    priority: int
    max_attempts: int
    delay: float | None
    run_at: datetime | None
    expires_at: datetime | None
    unique_key: str | None
    limit_key: str | None
    meta: str

    def shared(self) -> dict[str, Any]:
        """Return what insert_job and insert_jobs take alike."""
        return {
            "task": self.task,
            "queue": self.queue,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "delay": self.delay,
            "run_at": self.run_at,
            "expires_at": self.expires_at,
            "limit_key": self.limit_key,
            "meta": self.meta,
        }

    @property
    def simple(self) -> bool:
        """Whether the jobs have neither an expiry nor a limit_key nor meta."""
        return self.expires_at is None and self.limit_key is None and self.meta == "{}"

    @property
    def due(self) -> bool:
        """Whether the jobs may run at once."""
        return self.delay is None and self.run_at is None


def new_job(
    task: str,
    queue: str,
    *,
    priority: object,
    max_attempts: object,
    delay: object,
    run_at: object,
    unique_key: object,
    limit_key: object,
    expires_at: object,
    meta: object,
) -> NewJob:
    """Check enqueue options and return them as the statements take them: plain str and int, instants in UTC.

    An empty key means none. Raises EnqueueError for what is out of range or of the wrong type, and for ``delay``
    together with ``run_at``.
    """
    if delay is not None and run_at is not None:
        raise EnqueueError("delay and run_at are both given; give one of them")
    return NewJob(
        task=_plain(task),
        queue=_plain(queue),
        priority=_integer("priority", priority, -(2**15), 2**15 - 1, EnqueueError),
        max_attempts=_integer("max_attempts", max_attempts, 1, _MAX_INT, EnqueueError),
        delay=_seconds(delay),
        run_at=_instant("run_at", run_at),
        expires_at=_instant("expires_at", expires_at),
        unique_key=check_key("unique_key", unique_key),
        limit_key=check_key("limit_key", limit_key),
        meta=check_meta(meta),
    )


def check_task_options(
    name: object, queue: object, max_attempts: object, timeout: object, priority: object, backoff: object
) -> None:
    """Check what a task is registered with. Raises AkadzeError."""
    task = check_name("a task's name", name)
    try:
        check_queue(queue)
        _integer("max_attempts", max_attempts, 1, _MAX_INT, AkadzeError)
        _integer("priority", priority, -(2**15), 2**15 - 1, AkadzeError)
        if timeout is not None:
            _duration("timeout", timeout, AkadzeError)
        if backoff is not None and not callable(backoff):
            raise AkadzeError(f"backoff must be a function of the attempt number, not {with_article(type(backoff))}")
        if is_async(backoff):
            raise AkadzeError("backoff is async, but is called without await; make it a plain function")
    except AkadzeError as error:
        raise AkadzeError(f"task {task!r}: {error}") from None


def check_name(what: str, name: object) -> str:
    """Return a task's or queue's name as a plain str. Raises AkadzeError unless it is 1 to 512 bytes of text."""
    text = _text(what, name, AkadzeError)
    if not text:
        raise AkadzeError(f"{what} is empty; give it at least one character")
    return text


def check_queue(name: object) -> str:
    """Return a queue's name as a plain str. Raises AkadzeError unless it is 1 to 512 bytes of text."""
    return check_name("a queue's name", name)


def check_key(what: str, key: object) -> str | None:
    """Return a unique_key or limit_key as a plain str, None for None and the empty text. Raises EnqueueError."""
    return None if key is None else _text(what, key, EnqueueError) or None


def check_limit_key(key: object) -> str:
    """Return a limit's key as a plain str. Raises AkadzeError unless it is 1 to 512 bytes of text."""
    return check_name("a limit's key", key)


def check_limit(
    key: object, max_running: object, max_starts: object, window: object, *, named: Callable[[str], str] = str
) -> str:
    """Check what ``set_limit`` is given and return the key as a plain str. 0 lets nothing start.

    ``named`` tells what a parameter is called where it was written. Raises AkadzeError for an empty key, no policy at
    all, ``max_starts`` without ``window`` or the other way round, and numbers out of range.
    """
    text = check_limit_key(key)
    running, starts, within = named("max_running"), named("max_starts"), named("window")
    if max_running is None and max_starts is None and window is None:
        raise AkadzeError(f"no limit is given; give {running}, or {starts} with {within}, or all three")
    if (max_starts is None) is not (window is None):
        raise AkadzeError(f"{starts} and {within} belong together; give both or neither")
    if max_running is not None:
        _integer(running, max_running, 0, _MAX_INT, AkadzeError)
    if max_starts is not None:
        _integer(starts, max_starts, 0, _MAX_INT, AkadzeError)
        _duration(within, window, AkadzeError)
    return text


def check_number(what: str, number: object, low: int, high: int = _MAX_INT) -> int:
    """Return a whole number of a call that reads or tests. Raises AkadzeError unless it is an int in its bounds."""
    return _integer(what, number, low, high, AkadzeError)


def check_job_id(job_id: object) -> int:
    """Return a job's id. Raises AkadzeError unless it is an int that can be one."""
    return _integer("job_id", job_id, 1, _MAX_ID, AkadzeError)


def check_meta(meta: object, error: type[AkadzeError] = EnqueueError) -> str:
    """Return meta as the text of a JSON object, ``{}`` for None.

    Raises ``error`` unless it is a mapping with str keys at every level, of JSON values, at most 8 KiB as JSON.
    """
    if meta is None:
        return "{}"
    if not isinstance(meta, Mapping):
        raise error(f"meta must be a mapping with str keys, not {with_article(type(meta))}")
    try:
        text = json.dumps(
            _json_value(dict(meta), _MAX_META_DEPTH), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        size = len(text.encode())
    except _Unfit as unfit:
        raise error(f"meta {unfit}") from None
    except UnicodeEncodeError:
        raise error("meta holds a lone surrogate, which cannot be stored; remove it from the text") from None
    except ValueError:
        raise error("meta holds NaN, an infinity or an integer of thousands of digits; pass it as text") from None
    if size > MAX_META_BYTES:
        raise error(f"meta is {size} bytes as JSON, at most {MAX_META_BYTES} are allowed; pass the data as arguments")
    return text


class _Unfit(ValueError):
    pass


def _json_value(value: Any, depth: int) -> Any:
    """A copy of plain JSON types, so that no subclass decides how it is written."""
    if depth == 0:
        raise _Unfit(f"is nested more than {_MAX_META_DEPTH} levels deep")
    if isinstance(value, str):
        if "\0" in value:
            raise _Unfit("holds a NUL character, which PostgreSQL cannot store in text; remove it")
        return _plain(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _Unfit(f"has a key of type {type(key).__name__}; its keys must be str")
        return {_json_value(key, depth): _json_value(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item, depth - 1) for item in value]
    raise _Unfit(
        f"holds {with_article(type(value))}; its values must be JSON: text, numbers, true, false, null, lists, mappings"
    )


def _text(what: str, value: object, error: type[AkadzeError]) -> str:
    if not isinstance(value, str):
        raise error(f"{what} must be a str, not {with_article(type(value))}")
    if "\0" in value:
        raise error(f"{what} holds a NUL character, which PostgreSQL cannot store in text; remove it")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise error(f"{what} holds a lone surrogate, which cannot be stored; remove it from the text") from None
    if size > MAX_KEY_BYTES:
        raise error(f"{what} has {size} bytes, at most {MAX_KEY_BYTES} are allowed; shorten it or use a hash of it")
    return _plain(value)


def _plain(text: str) -> str:
    """The content as an exact str: drivers write a member of a str enum by its name."""
    return text if type(text) is str else str.__str__(text)


def _integer(what: str, value: object, low: int, high: int, error: type[AkadzeError]) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise error(f"{what} must be an int, not {with_article(type(value))}")
    if not low <= value <= high:
        raise error(f"{what} is {shown(value)}, but must be in {low}..{high}")
    return int(value)


def _duration(what: str, value: object, error: type[AkadzeError]) -> timedelta:
    if not isinstance(value, timedelta):
        raise error(f"{what} must be a timedelta, not {with_article(type(value))}")
    if not timedelta(0) < value <= _MAX_DELAY:
        raise error(f"{what} is {value}, but must be more than zero and at most {_MAX_DELAY.days} days")
    return value


def _seconds(delay: object) -> float | None:
    if delay is None:
        return None
    if not isinstance(delay, timedelta):
        raise EnqueueError(f"delay must be a timedelta, not {with_article(type(delay))}")
    if not timedelta(0) <= delay <= _MAX_DELAY:
        raise EnqueueError(f"delay is {delay}, but must not be negative and at most {_MAX_DELAY.days} days")
    return delay.total_seconds()


def _instant(what: str, value: object) -> datetime | None:
    """In UTC and an exact datetime: PostgreSQL takes fewer offsets than Python, drivers fewer types."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise EnqueueError(f"{what} must be a datetime with a time zone, not {with_article(type(value))}")
    try:
        if value.utcoffset() is None:
            raise EnqueueError(f"{what} has no time zone; give it one, for example datetime.now(timezone.utc)")
        utc = value.astimezone(UTC)
        # Away from both ends, so that it can be read back in any session time zone.
        if not 1 < utc.year < 9999:
            raise OverflowError
    except (OverflowError, ValueError):
        raise EnqueueError(f"{what} is outside the years 2 to 9998; leave it out if it means always or never") from None
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, UTC)
