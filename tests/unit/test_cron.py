"""The instants of cron expressions and intervals, against a simulation that walks minute by minute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from akadze._cron import Cron, Every
from akadze.errors import AkadzeError

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    """An instant written as `2026-03-08 07:30`, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, timezone: str | None, start: str, end: str) -> list[str]:
    return [f"{fire:%Y-%m-%d %H:%M}" for fire in Cron(expression, timezone).between(at(start), at(end))]


# Changes of the clock.


def test_an_hourly_schedule_fires_in_both_passes_of_a_repeated_hour() -> None:
    found = Cron("0 * * * *", "America/Los_Angeles").between(at("2026-11-01 07:00"), at("2026-11-02 08:00"))
    assert found == [at("2026-11-01 07:00") + step * HOUR for step in range(25)]


def test_a_fixed_hour_fires_in_the_first_pass_of_a_repeated_hour_only() -> None:
    assert fires("20 2 * * *", "Europe/Paris", "2026-10-25 00:00", "2026-10-25 22:00") == ["2026-10-25 00:20"]


def test_a_schedule_by_minutes_goes_on_while_the_clock_goes_back() -> None:
    found = Cron("*/5 * * * *", "Europe/Paris").between(at("2026-10-25 00:00"), at("2026-10-25 03:00"))
    assert found == [at("2026-10-25 00:00") + step * 5 * MINUTE for step in range(36)]


def test_a_fixed_hour_inside_a_gap_is_shifted_by_the_gap() -> None:
    cron = Cron("30 2 * * *", "America/New_York")
    assert cron.between(at("2026-03-08 05:00"), at("2026-03-09 04:00")) == [at("2026-03-08 07:30")]
    assert cron.next_after(at("2026-03-08 07:30")) == at("2026-03-09 06:30")


def test_fires_that_a_gap_lays_on_one_instant_are_one() -> None:
    assert fires("30 2,3 * * *", "America/New_York", "2026-03-08 05:00", "2026-03-09 04:00") == ["2026-03-08 07:30"]


def test_an_hour_that_starts_with_a_star_has_no_fire_for_minutes_that_do_not_exist() -> None:
    assert fires("30 */2 * * *", "America/New_York", "2026-03-08 05:00", "2026-03-08 10:00") == [
        "2026-03-08 05:30",
        "2026-03-08 08:30",
    ]


def test_every_second_hour_passes_through_the_end_of_summer_time() -> None:
    assert fires("0 */2 * * *", "Europe/Berlin", "2024-10-26 22:00", "2024-10-27 06:00") == [
        "2024-10-26 22:00",
        "2024-10-27 00:00",
        "2024-10-27 01:00",
        "2024-10-27 03:00",
        "2024-10-27 05:00",
    ]


def test_a_midnight_job_is_not_late_after_a_day_of_23_hours() -> None:
    assert Cron("0 0 * * 1-5", "America/Chicago").next_after(at("2021-03-12 06:00")) == at("2021-03-15 05:00")


def test_a_midnight_that_does_not_exist_fires_an_hour_later() -> None:
    assert fires("0 0 * * *", "America/Sao_Paulo", "2018-11-03 00:00", "2018-11-06 00:00") == [
        "2018-11-03 03:00",
        "2018-11-04 03:00",
        "2018-11-05 02:00",
    ]


def test_a_repeated_midnight_fires_once() -> None:
    assert fires("0 0 * * *", "America/Havana", "2026-11-01 00:00", "2026-11-02 06:00") == [
        "2026-11-01 04:00",
        "2026-11-02 05:00",
    ]


def test_a_clock_that_changes_by_half_an_hour_shifts_by_half_an_hour() -> None:
    assert fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-02 20:00", "2026-10-04 20:00") == [
        "2026-10-03 15:45",
        "2026-10-04 15:15",
    ]


def test_the_fire_of_a_day_that_does_not_exist_falls_on_the_one_of_the_day_after() -> None:
    assert fires("0 10 * * *", "Pacific/Apia", "2011-12-29 00:00", "2012-01-01 00:00") == [
        "2011-12-29 20:00",
        "2011-12-30 20:00",
        "2011-12-31 20:00",
    ]
    assert fires("0 10 30 12 *", "Pacific/Apia", "2011-12-01 00:00", "2012-02-01 00:00") == ["2011-12-30 20:00"]
    assert fires("0 * 30 12 *", "Pacific/Apia", "2011-12-01 00:00", "2012-02-01 00:00") == []


# Reading expressions.


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "60 * * * *",
        "* * * *",
        "* * * * * *",
        "* * * * * * *",
        "*/0 * * * *",
        "1-5/0 * * * *",
        "1,,2 * * * *",
        "",
        "   ",
        "@every 5m",
        "@reboot",
        "@",
        "R * * * *",
        "R(0-10) * * * *",
        "R/5 * * * *",
        "0 r * * *",
        "H * * * *",
        "-1 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 32 * *",
        "0 0 * 0 *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "0 0 * * 5#6",
        "0 0 * * 5#0",
        "0 0 * mon *",
        "0 0 * * jan",
        "0 0 * * monday",
        "0-60 * * * *",
        "0 5-99999999999 * * *",
        "L * * * *",
        "0 0 * L *",
        "0 0 * * L",
        "0 0 15W,3 * *",
        "0 0 32W * *",
        "? * * * *",
        "a b c d e",
        "0 0 * * *\0",
        "٣ * * * *",
        "1.5 * * * *",
        "1_0 * * * *",
    ],
)
def test_an_expression_that_cannot_be_read_or_can_never_fire_is_refused(expression: str) -> None:
    with pytest.raises(AkadzeError) as refusal:
        Cron(expression, None)
    assert repr(expression) in str(refusal.value)


@pytest.mark.parametrize("expression", [None, 5, b"0 0 * * *", ["0", "0", "*", "*", "*"]])
def test_an_expression_that_is_no_text_is_refused(expression: object) -> None:
    with pytest.raises(AkadzeError, match=r"^cron is \w+: pass an expression of five fields"):
        Cron(expression, None)  # type: ignore[arg-type]  # that is what is tested


def test_the_29th_of_february_is_possible() -> None:
    assert fires("0 0 29 2 *", None, "2026-01-01 00:00", "2033-01-01 00:00") == ["2028-02-29 00:00", "2032-02-29 00:00"]


def test_with_both_day_fields_restricted_either_is_enough() -> None:
    assert fires("48 14 31 6 0", None, "2026-06-01 00:00", "2026-07-01 00:00") == [
        f"2026-06-{day:02} 14:48" for day in (7, 14, 21, 28)
    ]
    assert fires("0 12 1,15 * 5", None, "2026-06-01 00:00", "2026-07-01 00:00") == [
        f"2026-06-{day:02} 12:00" for day in (1, 5, 12, 15, 19, 26)
    ]


def test_a_step_in_a_day_field_restricts_it() -> None:
    assert fires("0 12 */10 * 5", None, "2026-06-01 00:00", "2026-07-01 00:00") == [
        f"2026-06-{day:02} 12:00" for day in (1, 5, 11, 12, 19, 21, 26)
    ]


@pytest.mark.parametrize("days", ["* * 0-6", "*/2 * 0-6", "1-31/2 * */1", "*/1 * 1", "1-31 * 1", "*,5 * 1"])
def test_a_day_field_is_restricted_unless_it_is_a_star_alone(days: str) -> None:
    assert len(fires(f"0 0 {days}", None, "2026-06-01 00:00", "2026-07-01 00:00")) == 30


def test_a_question_mark_leaves_the_choice_to_the_other_day_field() -> None:
    assert fires("0 12 ? * 5", None, "2026-06-01 00:00", "2026-06-15 00:00") == ["2026-06-05 12:00", "2026-06-12 12:00"]


def test_a_start_at_the_maximum_with_a_step_is_one_value() -> None:
    week = ("2026-06-01 00:00", "2026-06-08 00:00")
    assert Cron("59/15 * * * *", None).between(at(week[0]), at(week[1])) == [
        at(week[0]) + 59 * MINUTE + step * HOUR for step in range(7 * 24)
    ]
    assert fires("0 23/6 * * *", None, *week) == [f"2026-06-{day:02} 23:00" for day in range(1, 8)]
    assert fires("0 0 * * 6/2", None, *week) == ["2026-06-06 00:00"]


@pytest.mark.parametrize(
    ("weekdays", "days"),
    [
        ("7", [7]),
        ("0", [7]),
        ("sun", [7]),
        ("SUN", [7]),
        ("5-7", [5, 6, 7]),
        ("fri-sun", [5, 6, 7]),
        ("0-7", [1, 2, 3, 4, 5, 6, 7]),
        ("1-7", [1, 2, 3, 4, 5, 6, 7]),
        ("7-7", [7]),
        ("sat-mon", [1, 6, 7]),
        ("7-2", [1, 2, 7]),
        ("mon-mon", [1]),
        ("1/2", [1, 3, 5]),
        ("0/2", [2, 4, 6, 7]),
        ("7/2", [7]),
        ("1-7/2", [1, 3, 5, 7]),
        ("5-1/2", [5, 7]),
        ("1,3-4,sat", [1, 3, 4, 6]),
    ],
)
def test_weekdays_take_names_ranges_and_seven_for_sunday(weekdays: str, days: list[int]) -> None:
    # The first of June 2026 is a Monday.
    expected = [f"2026-06-{day:02} 06:00" for day in days]
    assert fires(f"0 6 * * {weekdays}", None, "2026-06-01 00:00", "2026-06-08 00:00") == expected


@pytest.mark.parametrize(
    ("expression", "hours"),
    [
        ("0 9-9 * * *", [9]),
        ("0 09 * * *", [9]),
        ("0 22-4/3 * * *", [1, 4, 22]),
        ("0 22-2 * * *", [0, 1, 2, 22, 23]),
        ("0 8-18/5 * * *", [8, 13, 18]),
        ("0 5/9 * * *", [5, 14, 23]),
        ("0 */30 * * *", [0]),
    ],
)
def test_hours_take_ranges_and_steps(expression: str, hours: list[int]) -> None:
    assert fires(expression, None, "2026-06-01 00:00", "2026-06-02 00:00") == [
        f"2026-06-01 {hour:02}:00" for hour in hours
    ]


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 L 2 *", ["2026-02-28"]),
        ("0 0 27-L 2 *", ["2026-02-27", "2026-02-28"]),
        ("0 0 1,L 2 *", ["2026-02-01", "2026-02-28"]),
        ("0 0 * 2 5#3", ["2026-02-20"]),
        ("0 0 * 2 L5", ["2026-02-27"]),
        ("0 0 10 2 5#3", ["2026-02-10", "2026-02-20"]),
        ("0 0 15W 2 *", ["2026-02-16"]),
        ("0 0 1W 2 *", ["2026-02-02"]),
        ("0 0 W28 2 *", ["2026-02-27"]),
        ("0 0 1W 8 *", ["2026-08-03"]),
        ("0 0 31W 5 *", ["2026-05-29"]),
        ("0 0 18W 2 *", ["2026-02-18"]),
        ("0 0 * 2 5#5", []),
    ],
)
def test_last_nth_and_nearest_days_are_read(expression: str, days: list[str]) -> None:
    assert fires(expression, None, "2026-01-01 00:00", "2027-01-01 00:00") == [f"{day} 00:00" for day in days]


@pytest.mark.parametrize(
    ("alias", "meaning"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
    ],
)
def test_an_alias_stands_for_its_five_fields(alias: str, meaning: str) -> None:
    spring = ("2026-02-01 00:00", "2027-04-15 00:00")
    assert fires(alias, "Europe/Berlin", *spring) == fires(meaning, "Europe/Berlin", *spring) != []


# Zones.


def test_without_a_zone_the_wall_clock_is_utc_whatever_the_host_has() -> None:
    code = (
        "from datetime import UTC, datetime; from akadze._cron import Cron;"
        "print(*Cron('0 12 * * *', None).between(datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 6, 2, tzinfo=UTC)))"
    )
    environment = {**os.environ, "TZ": "Asia/Tokyo"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "2026-06-01 12:00:00+00:00"


@pytest.mark.parametrize(
    "timezone",
    [
        "Mars/Olympus",
        "",
        "+03:00",
        "UTC+3",
        " UTC",
        "Europe",
        "../Europe/Berlin",
        "/etc/localtime",
        "localtime",
        "right/Europe/Berlin",
        "Europe/Berlin\0",
        "\ud800",
    ],
)
def test_an_unknown_zone_is_refused(timezone: str) -> None:
    with pytest.raises(AkadzeError, match="is unknown: pass the name of an IANA zone"):
        Cron("0 0 * * *", timezone)


def test_a_zone_that_is_no_text_is_refused() -> None:
    with pytest.raises(AkadzeError, match="timezone is ZoneInfo: pass the name of an IANA zone"):
        Cron("0 0 * * *", ZoneInfo("Europe/Berlin"))  # type: ignore[arg-type]  # that is what is tested


# The three questions.


def test_the_latest_fire_is_looked_for_in_an_interval_with_both_ends() -> None:
    cron = Cron("0 6 * * *", None)
    fire = at("2026-06-01 06:00")
    assert cron.latest(fire, fire) == fire
    assert cron.latest(fire + DAY - MINUTE, fire) == fire
    assert cron.latest(fire + DAY - MINUTE, fire + timedelta(microseconds=1)) is None
    assert cron.latest(fire - timedelta(microseconds=1), fire - DAY + MINUTE) is None


def test_the_latest_fire_may_be_years_ago() -> None:
    cron = Cron("0 0 29 2 *", "Europe/Berlin")
    assert cron.latest(at("2027-12-31 00:00"), at("2020-01-01 00:00")) == at("2024-02-28 23:00")
    assert cron.latest(at("2027-12-31 00:00"), at("2024-02-28 23:01")) is None


def test_the_next_fire_is_later_than_now() -> None:
    cron = Cron("0 6 * * *", None)
    assert cron.next_after(at("2026-06-01 06:00")) == at("2026-06-02 06:00")
    assert cron.next_after(at("2026-06-01 06:00") - timedelta(microseconds=1)) == at("2026-06-01 06:00")


def test_now_may_be_given_in_any_zone_and_fires_are_in_utc() -> None:
    cron = Cron("0 6 * * *", "Europe/Berlin")
    now = datetime(2026, 6, 1, 1, 30, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert cron.next_after(now) == at("2026-06-01 04:00")
    assert cron.next_after(now).tzinfo is UTC
    assert cron.latest(now, now - DAY) == at("2026-05-31 04:00")


def test_the_end_of_an_interval_is_left_out() -> None:
    cron = Cron("0 6 * * *", None)
    assert cron.between(at("2026-06-01 06:00"), at("2026-06-02 06:00")) == [at("2026-06-01 06:00")]
    assert cron.between(at("2026-06-01 06:00"), at("2026-06-01 06:00")) == []


# Intervals.


def test_an_interval_fires_at_multiples_since_the_epoch() -> None:
    every = Every(timedelta(seconds=20))
    assert every.latest(at("2026-06-01 06:00") + timedelta(seconds=39.5), at("2026-06-01 06:00")) == at(
        "2026-06-01 06:00"
    ) + timedelta(seconds=20)
    assert every.next_after(at("2026-06-01 06:00")) == at("2026-06-01 06:00") + timedelta(seconds=20)
    assert every.between(at("2026-06-01 06:00"), at("2026-06-01 06:01")) == [
        at("2026-06-01 06:00") + step * timedelta(seconds=20) for step in range(3)
    ]


def test_an_interval_that_does_not_divide_the_day_has_the_same_slots_for_every_process() -> None:
    every = Every(timedelta(hours=7))
    fire = every.next_after(at("2026-06-01 06:00"))
    assert (fire - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(hours=7) == timedelta(0)
    assert every.latest(fire + timedelta(hours=6), fire - DAY) == fire


def test_an_interval_older_than_wanted_is_none() -> None:
    every = Every(timedelta(days=1))
    assert every.latest(at("2026-06-01 06:00"), at("2026-06-01 00:01")) is None
    assert every.latest(at("2026-06-01 06:00"), at("2026-06-01 00:00")) == at("2026-06-01 00:00")


@pytest.mark.parametrize(
    "interval", [timedelta(0), timedelta(seconds=-1), timedelta(seconds=0.5), timedelta.max, 5, "5m", None, True]
)
def test_an_interval_that_is_no_timedelta_of_a_second_or_more_is_refused(interval: timedelta) -> None:
    with pytest.raises(AkadzeError, match=r"^every is .*: pass"):
        Every(interval)


# The contract, minute by minute.

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


@settings(max_examples=150, deadline=None)
@given(fields=FIELDS, window=st.sampled_from(WINDOWS))
def test_fires_are_those_of_a_clock_on_the_wall_watched_minute_by_minute(
    fields: tuple[Field, ...], window: tuple[str, str]
) -> None:
    timezone, day = window
    start, end = at(day), at(day) + 3 * DAY
    expression = " ".join(field.text for field in fields)
    expected = simulate(fields, ZoneInfo(timezone), start, end)
    assume(is_possible(fields))
    cron = Cron(expression, timezone)
    assert cron.between(start, end) == expected
    # Asked anew for each instant, in an order that the memory of the last days does not suit.
    for instant in [start + (index * 7 % 72) * HOUR + 30 * MINUTE for index in range(72)]:
        before = [fire for fire in expected if fire <= instant]
        after = [fire for fire in expected if fire > instant]
        assert cron.latest(instant, start) == (before[-1] if before else None)
        if after:
            assert cron.next_after(instant) == after[0]
        else:
            assert cron.next_after(instant) >= end


@settings(max_examples=300, deadline=None)
@given(expression=st.text(alphabet="0123456789*/-,#?LWRHlwsunmojab@ \t", max_size=24))
def test_any_text_is_read_or_refused(expression: str) -> None:
    try:
        cron = Cron(expression, None)
    except AkadzeError:
        return
    now = at("2026-06-01 00:00")
    fire = cron.next_after(now)
    assert fire > now
    assert cron.latest(fire, fire) == fire
