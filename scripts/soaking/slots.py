"""The promise of schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from soaking.evidence import FINAL, Broken, Evidence
from soaking.kinds import HELD_BACK, SCHEDULES
from soaking.outages import Span, disturbances

#: Of a slot's period, so many seconds in a row without a fault and with beats: then it has to have fired.
_QUIET = 3.0


def slots_fire_once(evidence: Evidence) -> Iterator[Broken]:
    """Each slot has one job, planned for its instant; and a slot without a job fell into an outage."""
    promise = "slots fire once"
    inserted = {change.job_id: change for change in evidence.changes if change.old_state is None}
    tasks = {job.id: job.task for job in evidence.jobs}
    fired = defaultdict(set)
    for fire in evidence.fires:
        fired[fire.task].add(fire.slot)
        first = inserted.get(fire.job_id)
        if first is None or tasks.get(fire.job_id) != fire.task or abs((first.run_at or 0) - fire.slot) > 0.001:
            yield Broken(promise, f"slot {fire.slot} of {fire.task} has no job for its instant", fire.job_id)
    marked = {fire.job_id for fire in evidence.fires}
    for job in evidence.jobs:
        if job.task in SCHEDULES and job.id not in marked:
            yield Broken(promise, f"job {job.id} of {job.task} belongs to no slot", job.id)
    served = evidence.lines("serving", "served")
    if len(served) != 2:
        return
    disturbed = disturbances(evidence)
    for task, period in SCHEDULES.items():
        slot = (served[0]["at"] // period + 1) * period
        while slot + period < served[1]["at"]:
            missing = slot not in fired[task] and not _held(evidence, task, slot, period)
            if missing and _is_quiet(disturbed, slot, slot + period):
                yield Broken(promise, f"slot {slot} of {task} has not fired")
            slot += period


def _held(evidence: Evidence, task: str, slot: float, period: float) -> bool:
    """Tell whether the job of an earlier slot was not finished for most of the slot's period."""
    if task not in HELD_BACK:
        return False
    for fire in evidence.fires:
        if fire.task == task and fire.slot < slot:
            changes = evidence.changes_of.get(fire.job_id, [])
            if not changes or changes[-1].new_state not in FINAL or changes[-1].at > slot + period - _QUIET:
                return True
    return False


def _is_quiet(disturbed: list[Span], begin: float, end: float) -> bool:
    for at, over in sorted(disturbed):
        if at - begin >= _QUIET:
            break
        begin = max(begin, over)
    return end - begin >= _QUIET
