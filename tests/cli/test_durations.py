"""Contract, section 14: durations as people type them."""

from __future__ import annotations

from datetime import timedelta

import pytest
import typer

from akadze.cli.durations import duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("30", 30),
        ("0.5", 0.5),
        (".5", 0.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5m", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
    ],
)
def test_a_number_of_seconds_or_with_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "1 s", " 1", "-1", "+1", "1w", "1S", "5min", "1m30s", "1.", "1e3", "inf", "nan", "٣", "1_0"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration: give seconds, or a number with ms, s, m, h or d"):
        duration(text)


@pytest.mark.parametrize("text", ["1" * 30 + "d", "9" * 400])
def test_a_duration_has_to_be_one_that_can_be_told(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="longer than any duration"):
        duration(text)
