"""Outages of the database: said once, waited for with backoff."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from akadze._failure import name_of
from akadze._log import get_logger
from akadze._sqlstates import first_line
from akadze._urls import without_password

logger = get_logger("akadze.worker")

_FIRST: Final = 0.05  # seconds
_LONGEST: Final = 1.0  # seconds: a database that is back is noticed within this


class Outages:
    """What the duties of one worker know together: whether the database is away for any of them."""

    def __init__(self) -> None:
        self._failing: set[str] = set()

    def failed(self, duty: str, error: BaseException) -> None:
        if not self._failing:
            logger.warning(
                "the database is out of reach or refuses (%s: %s: %s): trying again until it is back",
                duty,
                name_of(error),
                without_password(first_line(error)),
            )
        self._failing.add(duty)

    def worked(self, duty: str) -> None:
        if duty in self._failing:
            self._failing.discard(duty)
            if not self._failing:
                logger.warning("the database is back")


class Outage:
    """Counts the failures of one duty since its last success."""

    def __init__(self, outages: Outages, duty: str) -> None:
        self._outages = outages
        self._duty = duty
        self._failures = 0

    async def wait(self, error: BaseException, *, most: float = _LONGEST) -> float:
        """Note a failure and wait before the next try, no longer than ``most`` seconds.

        Returns how long it was to be: the loop may have stood still.
        """
        self._outages.failed(self._duty, error)
        self._failures += 1
        longest = max(0, min(most, _LONGEST, _FIRST * 2 ** min(self._failures - 1, 10)))
        seconds: float = longest * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret
        await asyncio.sleep(seconds)
        return seconds

    def over(self) -> None:
        """Note a success."""
        if self._failures:
            self._failures = 0
            self._outages.worked(self._duty)
