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
    room, running = Counter(room), Counter(running)
    limited = set(room)
    lanes: dict[tuple[int, str], list[Waiting]] = {}
    for job in sorted(jobs, key=lambda job: (job.run_at, job.id), reverse=True):
        lanes.setdefault((job.priority, job.key), []).append(job)
    picks: list[int] = []
    while len(picks) < slots:
        heads = [lane[-1] for (_, key), lane in lanes.items() if lane and (key not in limited or room[key] > 0)]
        if not heads:
            break
        best = min(heads, key=lambda job: (-job.priority, running[job.key] if fair else 0, job.run_at, job.id))
        lanes[best.priority, best.key].pop()
        picks.append(best.id)
        running[best.key] += 1
        room[best.key] -= 1
    return picks
