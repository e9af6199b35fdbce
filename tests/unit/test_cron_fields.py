"""Contract, section 10: what cron expressions mean, and which are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akadze._cron import Cron
from akadze.errors import AkadzeError
from tests.fires import between

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    """An instant written as `2026-03-08 07:30`, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, timezone: str | None, start: str, end: str) -> list[str]:
    return [f"{fire:%Y-%m-%d %H:%M}" for fire in between(Cron(expression, timezone), at(start), at(end))]


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
    assert between(Cron("59/15 * * * *", None), at(week[0]), at(week[1])) == [
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
    ("months", "found"),
    [
        ("jan", [1]),
        ("DEC", [12]),
        ("feb,May", [2, 5]),
        ("jun-aug", [6, 7, 8]),
        ("sep-11/2", [9, 11]),
        ("mar-apr,oct", [3, 4, 10]),
        ("nov-jan", [1, 11, 12]),
        ("jul/3", [7, 10]),
    ],
)
def test_months_take_names_and_ranges(months: str, found: list[int]) -> None:
    expected = [f"2026-{month:02}-01 06:00" for month in found]
    assert fires(f"0 6 1 {months} *", None, "2026-01-01 00:00", "2027-01-01 00:00") == expected


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
