"""Durations as people type them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import typer

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d)?", re.ASCII)


def duration(text: str | timedelta) -> timedelta:
    """Read seconds (``30``, ``0.5``) or a number with a unit: ``500ms``, ``30s``, ``5m``, ``2h``, ``1d``.

    Raises typer.BadParameter for anything else.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no duration: give seconds, or a number with ms, s, m, h or d, like 500ms"
        )
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is longer than any duration can be") from None
