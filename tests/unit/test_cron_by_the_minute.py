"""Contract, section 10: fires of cron expressions against a clock on the wall that is watched minute by minute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from akadze._cron import Cron
from tests.families import FULL
from tests.fires import between

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    """An instant written as `2026-03-08 07:30`, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Windows with a change of the clock in them: forwards, back, at midnight, by half an hour, by a day, and none at all.
WINDOWS = [
    ("Europe/Berlin", "2026-03-28"),
    ("Europe/Berlin", "2026-10-24"),
    ("Europe/London", "2026-03-28"),
    ("Europe/London", "2026-10-24"),
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("America/Havana", "2026-03-07"),
    ("America/Havana", "2026-10-31"),
    ("America/Sao_Paulo", "2018-11-03"),
    ("America/Sao_Paulo", "2019-02-16"),
    ("Asia/Kolkata", "2026-03-28"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Africa/Cairo", "2026-04-23"),
    ("Africa/Cairo", "2026-10-29"),
    ("Pacific/Apia", "2011-12-29"),
    ("Pacific/Apia", "2011-12-30"),
    ("UTC", "2026-02-27"),
]


@dataclass(frozen=True)
class Field:
    text: str
    values: frozenset[int]


def field(low: int, high: int) -> st.SearchStrategy[Field]:
    """A field as text, and what it means by the rules of cron."""
    everything = frozenset(range(low, high + 1))
    number = st.integers(low, high)
    single = number.map(lambda value: Field(str(value), frozenset([value])))
    pair = st.tuples(number, number).map(sorted)
    ranged = pair.map(lambda ends: Field(f"{ends[0]}-{ends[1]}", frozenset(range(ends[0], ends[1] + 1))))
    stepped = st.tuples(pair, st.integers(1, high)).map(
        lambda drawn: Field(
            f"{drawn[0][0]}-{drawn[0][1]}/{drawn[1]}", frozenset(range(drawn[0][0], drawn[0][1] + 1, drawn[1]))
        )
    )
    listed = st.lists(st.one_of(single, ranged, stepped), min_size=2, max_size=3).map(
        lambda parts: Field(",".join(part.text for part in parts), frozenset().union(*(part.values for part in parts)))
    )
    starred = st.integers(2, high).map(lambda step: Field(f"*/{step}", frozenset(range(low, high + 1, step))))
    return st.one_of(st.just(Field("*", everything)), single, ranged, stepped, listed, starred)


# Mostly open months and days, so that most expressions fire within a few days.
EACH_MONTH, EACH_DAY = Field("*", frozenset(range(1, 13))), Field("*", frozenset(range(1, 32)))
FIELDS = st.tuples(
    field(0, 59),
    field(0, 23),
    st.booleans().flatmap(lambda is_open: st.just(EACH_DAY) if is_open else field(1, 31)),
    st.integers(0, 4).flatmap(lambda is_open: st.just(EACH_MONTH) if is_open else field(1, 12)),
    field(0, 6),
)


def is_possible(fields: tuple[Field, ...]) -> bool:
    lengths = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return fields[4].text != "*" or any(min(fields[2].values) <= lengths[month - 1] for month in fields[3].values)


def simulate(fields: tuple[Field, ...], zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """The fires of [start, end), from a walk over the minutes of the clock on the wall."""
    minutes, hours, days, months, weekdays = fields

    def matches(wall: datetime) -> bool:
        on_day, on_weekday = wall.day in days.values, wall.isoweekday() % 7 in weekdays.values
        both_restricted = days.text != "*" and weekdays.text != "*"
        return (
            wall.minute in minutes.values
            and wall.hour in hours.values
            and wall.month in months.values
            and ((on_day or on_weekday) if both_restricted else (on_day and on_weekday))
        )

    # What the clock on the wall shows at each minute of real time, with room for a skipped day on both sides.
    shown = [
        (instant, instant.astimezone(zone).replace(tzinfo=None))
        for instant in minutes_from(start - 2 * DAY, end + 2 * DAY)
    ]
    if hours.text.startswith("*"):
        found = {instant for instant, wall in shown if matches(wall)}
    else:
        first_pass: dict[datetime, datetime] = {}
        found = set()
        expected = shown[0][1]
        for instant, wall in shown:
            first_pass.setdefault(wall, instant)
        for instant, wall in shown:
            # The minutes that the clock jumped over fire later by the length of the jump.
            gap = wall - expected
            for skipped in minutes_from(expected, wall):
                if matches(skipped):
                    found.add(first_pass[skipped + gap])
            if matches(wall) and first_pass[wall] == instant:
                found.add(instant)
            expected = wall + MINUTE
    return sorted(instant for instant in found if start <= instant < end)


def minutes_from(start: datetime, end: datetime) -> Iterable[datetime]:
    while start < end:
        yield start
        start += MINUTE


@settings(max_examples=40, deadline=None)
@given(fields=FIELDS, window=st.sampled_from(WINDOWS))
def test_fires_are_those_of_a_clock_on_the_wall_watched_minute_by_minute(
    fields: tuple[Field, ...], window: tuple[str, str]
) -> None:
    compare(fields, window)


@FULL
@settings(max_examples=500, deadline=None)
@given(fields=FIELDS, window=st.sampled_from(WINDOWS))
def test_the_same_for_many_expressions(fields: tuple[Field, ...], window: tuple[str, str]) -> None:
    compare(fields, window)


def compare(fields: tuple[Field, ...], window: tuple[str, str]) -> None:
    timezone, day = window
    start, end = at(day), at(day) + 3 * DAY
    expression = " ".join(field.text for field in fields)
    expected = simulate(fields, ZoneInfo(timezone), start, end)
    assume(is_possible(fields))
    cron = Cron(expression, timezone)
    assert between(cron, start, end) == expected
    # Asked anew for each instant, in an order that the memory of the last days does not suit.
    for instant in [start + (index * 7 % 72) * HOUR + 30 * MINUTE for index in range(72)]:
        before = [fire for fire in expected if fire <= instant]
        after = [fire for fire in expected if fire > instant]
        assert cron.latest(instant, start) == (before[-1] if before else None)
        if after:
            assert cron.next_after(instant) == after[0]
        else:
            assert cron.next_after(instant) >= end
