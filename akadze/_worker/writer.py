"""Outcomes that wait to be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from akadze._claimed import ClaimedRun
from akadze._log import get_logger
from akadze._verdict import HAND_BACK, Move
from akadze._worker.exchange import Outcome

logger = get_logger("akadze.worker")

#: In one exchange; what is beyond goes with the next.
MOST = 1000
#: One result may be as large as this; more than one such in a statement would be too much for a text parameter.
MOST_BYTES = 100_000_000


class Writer:
    """Gathers outcomes between exchanges, and keeps them until the database has taken them.

    An outcome that is missing in the answer is asked for again before it is given up: its row may only have been
    locked for a moment.
    """

    def __init__(self) -> None:
        #: The run is that whose body ended so, None for a hand-back and for an outcome that was replaced.
        self._waiting: dict[tuple[int, int], tuple[Outcome, ClaimedRun | None]] = {}
        #: Runs whose on_transition hook refused the outcome: they stay running until this worker stops.
        self.stuck: set[tuple[int, int]] = set()
        # In the exchange that is under way, and in one that was never answered: those may have been written.
        self._sent: set[tuple[int, int]] = set()
        self._doubtful: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, run: ClaimedRun, move: Move) -> None:
        self._waiting[(run.id, run.number)] = _outcome(run.id, run.number, move), run

    def hand_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Return runs to the queue, unless an outcome of theirs waits already."""
        for job_id, number in runs:
            self.stuck.discard((job_id, number))
            self._waiting.setdefault((job_id, number), (_outcome(job_id, number, HAND_BACK), None))

    def take(self, most: int = MOST) -> list[Outcome]:
        """Return what is to be written next. It waits on until it is settled."""
        taken: list[Outcome] = []
        size = 0
        for outcome, _ in self._waiting.values():
            size += len(outcome[2])
            if taken and (size > MOST_BYTES or len(taken) == most):
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
                # A run that was given up has a number below zero.
                logger.warning(
                    "run %s of job %s was not this worker's any more: its outcome is dropped", abs(key[1]), key[0]
                )
        if settled:
            logger.info(
                "%s outcomes whose answer was lost are settled: they had been written, or their jobs were taken back",
                settled,
            )

    def knows(self, key: tuple[int, int]) -> bool:
        return key in self._waiting or key in self.stuck

    def waits(self, key: tuple[int, int]) -> bool:
        return key in self._waiting

    def run_that_waits(self, key: tuple[int, int]) -> ClaimedRun | None:
        """Return the run whose outcome waits, None as in ``run_of``."""
        return self._waiting[key][1]

    def run_of(self, outcome: Outcome) -> ClaimedRun | None:
        """Return the run that ended with this outcome, None for a hand-back and for one that was replaced."""
        return self._waiting[(outcome[0], outcome[1])][1]

    def replace(self, outcome: Outcome, move: Move) -> None:
        """Write another outcome than one that the database refuses."""
        job_id, number, _ = outcome
        self._waiting[(job_id, number)] = _outcome(job_id, number, move), None


def _outcome(job_id: int, number: int, move: Move) -> Outcome:
    return job_id, number, move.outcome(job_id, number)
