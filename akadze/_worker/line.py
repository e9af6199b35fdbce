"""What the answers of claims teach about the line, for the claims that follow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from akadze._claimed import ID, PRIORITY, QUEUE, RUN_AT, ClaimedRow
from akadze._worker import literals

#: Keys looked at per level in one claim. Up to this many the choice is exact; beyond, claims rotate through them.
_LANES: Final = 300
_LEAST_SPARE: Final = 10
#: Rows of the line that a claim reads beyond what it needs, where more lanes than this would have to be asked instead.
_NEAR: Final = 100
_MANY_LANES: Final = 30

_NOTHING_KNOWN: Final = {"known_queues": "{}", "known_priorities": "{}", "known_run_ats": "{}", "known_ids": "{}"}


class Line:
    """Where to read on, and how much, so that a claim does not read what earlier ones have passed."""

    def __init__(self) -> None:
        # The place, run_at and id, behind which each level's line goes on.
        self._known: dict[tuple[str, int], tuple[datetime, int]] = {}
        # Candidates beyond the slots, rows beyond the candidates, and where the keys go on.
        self._spare = float(_LEAST_SPARE)
        self._near = 0.0
        self._after = ""

    def forget(self) -> None:
        """Look at the whole line at the next claim."""
        self._known.clear()

    def known(self) -> dict[str, str]:
        """Return the parameters of a claim that tell it where to read on."""
        if not self._known:
            return _NOTHING_KNOWN
        return {
            "known_queues": literals.texts(queue for queue, _ in self._known),
            "known_priorities": literals.plain(priority for _, priority in self._known),
            "known_run_ats": literals.texts(run_at.isoformat() for run_at, _ in self._known.values()),
            "known_ids": literals.plain(job_id for _, job_id in self._known.values()),
        }

    def bounds(self) -> dict[str, Any]:
        """Return the parameters of a choice that tell it how much to read."""
        return {"lanes": _LANES, "after": self._after, "near": int(self._near), "spare": int(self._spare)}

    def claimed(self, rows: Sequence[ClaimedRow], wanted: int) -> None:
        """Learn from a plain claim."""
        if len(rows) < wanted:
            self.forget()
            return
        # Behind the last job of a level its line goes on.
        for row in rows:
            self._known[(row[QUEUE], row[PRIORITY])] = (row[RUN_AT], row[ID])

    def chosen(self, answer: Sequence[Any], claimed: int, wanted: int) -> bool:
        """Learn from a choice and what was claimed of it; tell whether more may be claimable at once."""
        _, _, lanes, last_key, windows = answer
        bounded = lanes is not None and lanes >= _LANES
        self._after = last_key if bounded else ""
        self._near = _NEAR if lanes is not None and lanes > _MANY_LANES else self._near * 0.9
        if claimed < wanted:
            self._spare = min(2 * self._spare, 6 * wanted + _LEAST_SPARE)
            self.forget()
            return bounded
        self._spare = max(_LEAST_SPARE, self._spare * 0.9)
        for queue, priority, began in windows or []:
            self._known[(queue, priority)] = (datetime.fromisoformat(began), 0)
        return False
