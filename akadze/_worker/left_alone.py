"""Jobs that upkeep leaves alone for a while, since a hook refused what it wanted to do with them."""

from __future__ import annotations

import time
from collections.abc import Iterable


class LeftAlone:
    """Ids of jobs, each with the moment from which it may be tried again.

    They are tried again when no other job is left: else many of them would keep the others waiting.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def add(self, job_ids: Iterable[int], seconds: float) -> None:
        """Leave these jobs alone for so long."""
        until = time.monotonic() + seconds
        self._until.update(dict.fromkeys(job_ids, until))

    def ids(self) -> list[int]:
        return list(self._until)

    def none_else(self) -> None:
        """Let those whose time is over be tried again."""
        now = time.monotonic()
        self._until = {job_id: until for job_id, until in self._until.items() if until > now}
