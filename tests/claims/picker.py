"""What a claim has to take, worked out one pick at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Waiting:
    """A job that could start, were there no limits."""

    id: int
    queue: str
    priority: int
    run_at: datetime
    #: The empty text for jobs without a key, which are one group.
    key: str


def pick(
    jobs: Iterable[Waiting],
    slots: int,
    *,
    room: Mapping[str, int],
    running: Mapping[str, int],
    fair: bool,
) -> list[int]:
    """Fill slots of one queue one after another, counting each pick before the next.

    ``room``: how many more may start of each limited key. ``running``: how many of each group run in the queue.
    """
    left = set(jobs)
    room, running = Counter(room), Counter(running)
    limited = set(room)
    picks: list[int] = []
    while len(picks) < slots:
        startable = [job for job in left if job.key not in limited or room[job.key] > 0]
        if not startable:
            break
        top = max(job.priority for job in startable)
        best = min(
            (job for job in startable if job.priority == top),
            key=lambda job: (running[job.key] if fair else 0, job.run_at, job.id),
        )
        left.remove(best)
        picks.append(best.id)
        running[best.key] += 1
        room[best.key] -= 1
    return picks
