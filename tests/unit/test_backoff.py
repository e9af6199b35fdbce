"""Contract, section 5: how long a job waits before its next attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akadze._backoff import clamp, default_backoff, next_delay

YEAR = timedelta(days=365)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (11, 300), (2**31 - 1, 300), (0, 1), (-5, 1)],
)
def test_the_default_doubles_up_to_five_minutes_and_is_spread_over_the_upper_half(attempt: int, seconds: int) -> None:
    assert default_backoff(attempt, 0.0) == timedelta(seconds=seconds / 2)
    assert default_backoff(attempt, 0.5) == timedelta(seconds=seconds * 0.75)
    assert default_backoff(attempt, 1.0) == timedelta(seconds=seconds)


@given(st.integers(1, 2**31 - 1), st.floats(0, 1))
def test_the_default_stays_within_its_bounds(attempt: int, random: float) -> None:
    assert timedelta(seconds=0.5) <= default_backoff(attempt, random) <= timedelta(seconds=300)


def test_without_a_policy_the_default_is_used_in_silence() -> None:
    assert next_delay(None, 3, 1.0) == (timedelta(seconds=4), None)


def test_a_policy_is_given_the_number_of_the_failed_attempt() -> None:
    assert next_delay(lambda attempt: timedelta(minutes=attempt), 3, 0.0) == (timedelta(minutes=3), None)


@pytest.mark.parametrize(
    ("delay", "clamped"),
    [
        (timedelta(0), timedelta(0)),
        (timedelta(seconds=-1), timedelta(0)),
        (timedelta.min, timedelta(0)),
        (timedelta.max, YEAR),
        (YEAR, YEAR),
        (YEAR + timedelta(microseconds=1), YEAR),
        (timedelta(microseconds=1), timedelta(microseconds=1)),
    ],
)
def test_delays_are_moved_into_zero_to_a_year(delay: timedelta, clamped: timedelta) -> None:
    assert clamp(delay) == clamped
    assert next_delay(lambda attempt: delay, 1, 0.0) == (clamped, None)


def raises(error: BaseException) -> Any:
    def policy(attempt: int) -> timedelta:
        raise error

    return policy


async def policy_coroutine(attempt: int) -> timedelta:
    return timedelta(0)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (raises(ZeroDivisionError("secret")), "raised ZeroDivisionError"),
        (raises(OverflowError()), "raised OverflowError"),
        (raises(SystemExit(1)), "raised SystemExit"),
        (raises(KeyboardInterrupt()), "raised KeyboardInterrupt"),
        (lambda attempt: 5, "type int"),
        (lambda attempt: None, "type NoneType"),
        (lambda attempt: policy_coroutine(attempt), "type coroutine"),
        (lambda: timedelta(1), "raised TypeError"),
        (lambda attempt: timedelta(days=2) ** attempt, "raised TypeError"),
        (5, "raised TypeError"),
    ],
)
def test_a_policy_that_gives_no_delay_is_replaced_and_the_warning_says_why(policy: Any, says: str) -> None:
    delay, warning = next_delay(policy, 2, 1.0)
    assert delay == timedelta(seconds=2)
    assert warning is not None
    assert says in warning
    assert "attempt 2" in warning
    assert "secret" not in warning
