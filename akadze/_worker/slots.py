"""The slots of a worker: how many jobs of each queue it may run at once."""

from __future__ import annotations

from collections.abc import Sequence


class Slots:
    """Counts the running jobs of each queue."""

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        self._slots = slots
        self._running = dict.fromkeys(queues, 0)

    def free(self) -> dict[str, int]:
        """Return the free slots of each queue that has any."""
        return {queue: self._slots - count for queue, count in self._running.items() if count < self._slots}

    @property
    def busy(self) -> int:
        return sum(self._running.values())

    def take(self, queue: str) -> None:
        self._running[queue] += 1

    def give(self, queue: str) -> None:
        self._running[queue] -= 1
