"""One outage of the database: said once, waited for with backoff."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from akadze._failure import name_of
from akadze._urls import without_password

_FIRST: Final = 0.05  # seconds
_LONGEST: Final = 1.0  # seconds: a database that is back is noticed within this


class Outage:
    """Counts the failures of one duty since its last success."""

    def __init__(self, logger: logging.Logger, duty: str) -> None:
        self._logger = logger
        self._duty = duty
        self._failures = 0

    async def wait(self, error: BaseException) -> None:
        """Note a failure and wait before the next try."""
        if self._failures == 0:
            self._logger.warning(
                "%s failed and is tried again: %s: %s", self._duty, name_of(error), without_password(_first_line(error))
            )
        self._failures += 1
        longest = min(_LONGEST, _FIRST * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - jitter, no secret

    def over(self) -> None:
        """Note a success."""
        if self._failures:
            self._logger.warning("%s works again, after %s failures", self._duty, self._failures)
            self._failures = 0


def _first_line(error: BaseException) -> str:
    # SQLAlchemy adds the statement and its parameters on further lines: those may hold arguments.
    orig = getattr(error, "orig", None)
    text = str(orig if orig is not None else error).strip()
    return text.splitlines()[0] if text else ""
