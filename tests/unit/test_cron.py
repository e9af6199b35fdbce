"""Contract, section 10: the instants of cron expressions and intervals, through changes of the clock."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from akadze._cron import Cron, Every
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


# Changes of the clock.


def test_an_hourly_schedule_fires_in_both_passes_of_a_repeated_hour() -> None:
    found = between(Cron("0 * * * *", "America/Los_Angeles"), at("2026-11-01 07:00"), at("2026-11-02 08:00"))
    assert found == [at("2026-11-01 07:00") + step * HOUR for step in range(25)]


def test_a_fixed_hour_fires_in_the_first_pass_of_a_repeated_hour_only() -> None:
    assert fires("20 2 * * *", "Europe/Paris", "2026-10-25 00:00", "2026-10-25 22:00") == ["2026-10-25 00:20"]


def test_a_schedule_by_minutes_goes_on_while_the_clock_goes_back() -> None:
    found = between(Cron("*/5 * * * *", "Europe/Paris"), at("2026-10-25 00:00"), at("2026-10-25 03:00"))
    assert found == [at("2026-10-25 00:00") + step * 5 * MINUTE for step in range(36)]


def test_a_fixed_hour_inside_a_gap_is_shifted_by_the_gap() -> None:
    cron = Cron("30 2 * * *", "America/New_York")
    assert between(cron, at("2026-03-08 05:00"), at("2026-03-09 04:00")) == [at("2026-03-08 07:30")]
    assert cron.next_after(at("2026-03-08 07:30")) == at("2026-03-09 06:30")


def test_fires_that_a_gap_lays_on_one_instant_are_one() -> None:
    assert fires("30 2,3 * * *", "America/New_York", "2026-03-08 05:00", "2026-03-09 04:00") == ["2026-03-08 07:30"]


@pytest.mark.parametrize("hours", ["0-23", "0-23/1", "0,1-23"])
def test_an_hour_field_of_all_hours_is_fixed_when_it_does_not_start_with_a_star(hours: str) -> None:
    assert fires(f"30 {hours} * * *", "Europe/Berlin", "2026-10-24 23:00", "2026-10-25 03:00") == [
        "2026-10-24 23:30",
        "2026-10-25 00:30",
        "2026-10-25 02:30",
    ]
    assert fires(f"30 {hours} * * *", "Europe/Berlin", "2026-03-28 23:00", "2026-03-29 03:00") == [
        "2026-03-28 23:30",
        "2026-03-29 00:30",
        "2026-03-29 01:30",
        "2026-03-29 02:30",
    ]


def test_no_other_field_than_the_hour_decides_what_a_change_of_the_clock_does() -> None:
    assert fires("*/30 2 * * *", "Europe/Berlin", "2026-10-24 22:00", "2026-10-25 22:00") == [
        "2026-10-25 00:00",
        "2026-10-25 00:30",
    ]
    assert fires("30 * 25 10 0", "Europe/Berlin", "2026-10-24 23:00", "2026-10-25 03:00") == [
        "2026-10-24 23:30",
        "2026-10-25 00:30",
        "2026-10-25 01:30",
        "2026-10-25 02:30",
    ]


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


# Zones.


def test_without_a_zone_the_wall_clock_is_utc_whatever_the_host_has() -> None:
    code = (
        "from datetime import UTC, datetime; from akadze._cron import Cron;"
        "print(Cron('0 12 * * *', None).next_after(datetime(2026, 6, 1, tzinfo=UTC)))"
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


# Intervals.


def test_an_interval_fires_at_multiples_since_the_epoch() -> None:
    every = Every(timedelta(seconds=20))
    assert every.latest(at("2026-06-01 06:00") + timedelta(seconds=39.5), at("2026-06-01 06:00")) == at(
        "2026-06-01 06:00"
    ) + timedelta(seconds=20)
    assert every.next_after(at("2026-06-01 06:00")) == at("2026-06-01 06:00") + timedelta(seconds=20)
    assert between(every, at("2026-06-01 06:00"), at("2026-06-01 06:01")) == [
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
