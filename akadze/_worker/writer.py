"""Outcomes that wait to be written."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from akadze._claimed import ClaimedRun
from akadze._states import FAILED, QUEUED
from akadze._verdict import HAND_BACK, Move
from akadze._worker.exchange import Outcome

logger = logging.getLogger("akadze.worker")

#: In one exchange; what is beyond goes with the next.
MOST = 1000
#: One result may be as large as this; more than one such in a statement would be too much for a text parameter.
MOST_BYTES = 100_000_000
_REFUSED = "the database refused to store the result"


class Writer:
    """Gathers outcomes between exchanges, and keeps them until the database has taken them.

    An outcome that is missing in the answer is asked for again before it is given up: its row may only have been
    locked for a moment.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], Outcome] = {}
        #: Runs whose on_transition hook refused the outcome: they stay running until this worker stops.
        self.stuck: set[tuple[int, int]] = set()
        # In the exchange that is under way, and in one that was never answered: those may have been written.
        self._sent: set[tuple[int, int]] = set()
        self._doubtful: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, run: ClaimedRun, move: Move) -> None:
        self._waiting[(run.id, run.number)] = (run.id, run.number, move.outcome(run.id, run.number))

    def hand_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Return runs to the queue, unless an outcome of theirs waits already."""
        for job_id, number in runs:
            self.stuck.discard((job_id, number))
            self._waiting.setdefault((job_id, number), (job_id, number, HAND_BACK.outcome(job_id, number)))

    def take(self) -> list[Outcome]:
        """Return what is to be written next. It waits on until it is settled."""
        taken: list[Outcome] = []
        size = 0
        for outcome in self._waiting.values():
            size += len(outcome[2])
            if taken and (size > MOST_BYTES or len(taken) == MOST):
                break
            taken.append(outcome)
        self._doubtful |= self._sent
        self._sent = {(job_id, number) for job_id, number, _ in taken}
        return taken

    def settle(
        self, sent: Sequence[Outcome], written: Collection[tuple[int, int]], refused: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Forget what was written or refused; return the runs that are missing in the answer."""
        for key in refused:
            self._waiting.pop(key, None)
            self._doubtful.discard(key)
            self.stuck.add(key)
        missing = []
        for job_id, number, _ in sent:
            key = (job_id, number)
            self._sent.discard(key)
            if key in written:
                self._waiting.pop(key, None)
                self._doubtful.discard(key)
            elif key not in self.stuck:
                missing.append(key)
        return missing

    def drop(self, runs: Iterable[tuple[int, int]]) -> None:
        """Give up outcomes of runs that are not this worker's any more."""
        settled = 0
        for key in runs:
            if self._waiting.pop(key, None) is None:
                continue
            if key in self._doubtful:
                self._doubtful.discard(key)
                settled += 1
            else:
                logger.warning(
                    "run %s of job %s was not this worker's any more: its outcome is dropped", key[1], key[0]
                )
        if settled:
            logger.info(
                "%s outcomes whose answer was lost are settled: they had been written, or their jobs were taken back",
                settled,
            )

    def knows(self, key: tuple[int, int]) -> bool:
        return key in self._waiting or key in self.stuck

    def replace_refused_value(self, outcome: Outcome) -> bool:
        """Turn an outcome whose values the database refuses into a failure of its run; False if it is one already."""
        job_id, number, text = outcome
        given: dict[str, Any] = json.loads(text)
        if (given.get("error") or {}).get("message") == _REFUSED:
            return False
        logger.warning("job %s: the database refuses the result of run %s, the job fails", job_id, number)
        entry = {
            "error": "ResultNotJson",
            "message": _REFUSED,
            "at": datetime.now(UTC).isoformat(),
        }
        state = given["state"] if given["state"] == QUEUED else FAILED
        fields = {"id": job_id, "run": number, "state": state, "error": entry, "attempt": given.get("attempt")}
        self._waiting[(job_id, number)] = (job_id, number, json.dumps(fields))
        return True
