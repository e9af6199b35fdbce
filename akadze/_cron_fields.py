"""The five fields of a cron expression, as sets. Pure.

croniter reads them; what it reads otherwise than cron does is spelt out before.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from croniter import CroniterError, croniter

from akadze.errors import AkadzeError

_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}

# A day field that is written like this is not restricted; any other one is, even if it allows each day.
_OPEN = ("*", "?")

# A range or a value with a step: 1-5, mon-fri, 8-18/2, 5/15. The last of the month may end a range of days.
_RANGE = re.compile(r"([a-z]+|\d{1,4})(?:-([a-z]+|\d{1,4}))?(?:/(\d{1,4}))?", re.ASCII)
_NEAREST_WEEKDAY = re.compile(r"(\d{1,2})w|w(\d{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: dict[str, int]


_MINUTE = _Field("minute", 0, 59, {})
_HOUR = _Field("hour", 0, 23, {})
_DAY = _Field("day of month", 1, 31, {})
_MONTH = _Field("month", 1, 12, _MONTHS)
_WEEKDAY = _Field("day of week", 0, 7, _WEEKDAYS)
_FIELDS = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)


@dataclass(frozen=True, slots=True)
class CronFields:
    """What the fields allow. A day field of None is not restricted: it leaves the choice to the other."""

    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    days: _Days | None
    weekdays: _Weekdays | None
    follows_clock: bool
    """Whether the hour field starts with ``*``."""

    def matches(self, day: date) -> bool:
        """Tell whether the month and day fields allow this date: with both day fields restricted, either is enough."""
        if day.month not in self.months:
            return False
        if self.days is None:
            return self.weekdays is None or self.weekdays.match(day)
        return self.days.match(day) or (self.weekdays is not None and self.weekdays.match(day))


@dataclass(frozen=True, slots=True)
class _Days:
    numbers: frozenset[int]
    last: bool
    nearest_weekday: int | None

    def match(self, day: date) -> bool:
        if self.nearest_weekday is not None:
            return day.day == _nearest_weekday(day, self.nearest_weekday)
        return day.day in self.numbers or (self.last and day.day == _month_length(day))


@dataclass(frozen=True, slots=True)
class _Weekdays:
    numbers: frozenset[int]
    """0 is Sunday."""
    nth: frozenset[tuple[int, int]]
    """Pairs of weekday and its place in the month, 1 to 5."""
    last: frozenset[int]

    def match(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        return (
            weekday in self.numbers
            or (weekday, (day.day + 6) // 7) in self.nth
            or (weekday in self.last and day.day > _month_length(day) - 7)
        )


def parse_fields(expression: str) -> CronFields:
    """Read a cron expression of five fields, or one of the aliases from ``@hourly`` to ``@yearly``.

    Raises AkadzeError, also for what has another value each time it is read (``R``).
    """
    if not isinstance(expression, str):
        raise AkadzeError(
            f"cron is {type(expression).__name__}: pass an expression of five fields, such as '0 6 * * 1-5'"
        )
    lowered = expression.strip().lower()
    texts = _ALIASES.get(lowered, lowered).split()
    if len(texts) != len(_FIELDS):
        raise AkadzeError(
            f"the cron expression {expression!r} has {len(texts)} fields: write five, which are minute, hour, "
            "day of month, month and day of week"
        )
    for field, text in zip(_FIELDS, texts, strict=True):
        if text[0] in "hr":
            raise AkadzeError(
                f"the cron expression {expression!r} has {text!r} as {field.name}: values that are drawn by chance "
                "are not allowed, write a number"
            )
    nearest = _NEAREST_WEEKDAY.fullmatch(texts[2])
    plain = [_spell_out(field, text) for field, text in zip(_FIELDS, texts, strict=True)]
    if nearest:
        plain[2] = nearest[1] or nearest[2]
    try:
        (minutes, hours, days, months, weekdays), special = croniter.expand(" ".join(plain))
    except (CroniterError, ValueError, TypeError, KeyError, IndexError) as error:
        raise AkadzeError(
            f"the cron expression {expression!r} cannot be read: write five fields of numbers, names, ranges, lists "
            "and steps, such as '*/15 8-18 * * mon-fri'"
        ) from error
    return CronFields(
        minutes=_numbers(_MINUTE, minutes),
        hours=_numbers(_HOUR, hours),
        months=_numbers(_MONTH, months),
        days=None
        if texts[2] in _OPEN
        else _Days(_numbers(_DAY, days), "l" in days, int(plain[2]) if nearest else None),
        weekdays=None if texts[4] in _OPEN else _read_weekdays(weekdays, special),
        follows_clock=texts[1].startswith("*"),
    )


def _spell_out(field: _Field, text: str) -> str:
    """Write the ranges of a field as lists of numbers.

    croniter reads an equal range (9-9) as the whole field, and loses its step in a range that wraps around (22-4/3).
    What is no range of known values is left to it to read or to refuse.
    """
    return ",".join(_spell_out_part(field, part) for part in text.split(","))


def _spell_out_part(field: _Field, part: str) -> str:
    match = _RANGE.fullmatch(part)
    if not match or (match[2] is None and match[3] is None):
        return part
    low = _value(field, match[1])
    if match[2] is not None:
        high = 31 if field is _DAY and match[2] == "l" else _value(field, match[2])
    else:
        # The week ends with Saturday: 1/2 is Monday, Wednesday, Friday.
        high = 6 if field is _WEEKDAY and low != 7 else field.high
    step = int(match[3] or 1)
    if low is None or high is None or not step:
        return part
    size = field.high - field.low + 1
    if low > high and field is _WEEKDAY:
        low, size = low % 7, 7
    if low > high:
        high += size
    return ",".join(str((value - field.low) % size + field.low) for value in range(low, high + 1, step))


def _value(field: _Field, text: str) -> int | None:
    value = int(text) if text.isdecimal() else field.names.get(text)
    return value if value is not None and field.low <= value <= field.high else None


def _numbers(field: _Field, values: Iterable[Any]) -> frozenset[int]:
    values = set(values)
    if "*" in values:
        return frozenset(range(field.low, field.high + 1))
    return frozenset(value for value in values if isinstance(value, int))


def _read_weekdays(values: Iterable[Any], special: dict[int, set[Any]]) -> _Weekdays:
    return _Weekdays(
        numbers=_numbers(_WEEKDAY, values).difference(special),
        nth=frozenset((weekday, place) for weekday, places in special.items() for place in places if place != "l"),
        last=frozenset(weekday for weekday, places in special.items() if "l" in places),
    )


def _month_length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def _nearest_weekday(day: date, wanted: int) -> int:
    """Return the day of this month from Monday to Friday that is nearest to the wanted one; it stays in the month."""
    last = _month_length(day)
    wanted = min(wanted, last)
    weekday = calendar.weekday(day.year, day.month, wanted)
    if weekday == calendar.SATURDAY:
        return wanted - 1 if wanted > 1 else wanted + 2
    if weekday == calendar.SUNDAY:
        return wanted + 1 if wanted < last else wanted - 2
    return wanted
