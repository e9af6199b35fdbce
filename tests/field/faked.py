"""Clocks that are wrong: the environment of a process whose wall clock is ahead, behind, or at a chosen instant."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest


def clock(ahead: timedelta) -> dict[str, str]:
    """The environment of a process whose wall clock goes that much ahead (behind, if negative) of the real one.

    Its monotonic clock is the real one, so its pauses are, too. A process that it starts has the same clock.
    """
    program = shutil.which("faketime")
    if program is None:
        pytest.skip("the test needs faketime: apt install faketime")
    # The command sets up the environment; what it is there is not the same on each system.
    printed = subprocess.run(
        [program, "-m", "-f", "+0", "sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return {
        "LD_PRELOAD": printed.stdout.strip(),
        "FAKETIME": f"{ahead.total_seconds():+f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def clock_at(instant: datetime) -> dict[str, str]:
    """The environment of a process whose wall clock shows that instant now, and goes on."""
    return clock(instant - datetime.now(UTC))
