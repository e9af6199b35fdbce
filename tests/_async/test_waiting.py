"""Tests wait for what they expect, and fail when it does not come."""

from __future__ import annotations

import pytest

from .waiting import until


async def test_until_returns_the_first_true_value() -> None:
    seen = iter([0, "", None, "here", "later"])

    async def look() -> object:
        return next(seen)

    assert await until(look) == "here"


async def test_until_takes_a_plain_function_too() -> None:
    assert await until(lambda: 7) == 7


async def test_until_fails_at_the_deadline_with_the_last_value_and_the_question() -> None:
    with pytest.raises(AssertionError, match=r"still 0.*lambda: 1 - 1"):
        await until(lambda: 1 - 1, timeout=0.02)


async def test_until_lets_an_error_through() -> None:
    async def broken() -> object:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        await until(broken)
