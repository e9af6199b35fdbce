"""The promises that a soak tests, each as a pure function of the evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from soaking.evidence import FINAL, Broken, Change, Evidence, Policy
from soaking.kinds import BLOCKING, PAYMENTS, SCHEDULES
from soaking.outages import OUTAGES, intervals
from soaking.slots import slots_fire_once

#: Seconds for which a process that was frozen past its lease may go on before it notices.
_NOTICES = 2.0
#: Seconds between the reading of a clock and what a commit makes of it, at most, on a busy machine.
_SLACK = 0.5
_GROWS_UP = 10.0  # seconds until a process has surely begun to work

#: What a body raised, and what may become of its job then: states, with what was spent.
_OUTCOMES = {
    "returned": {("succeeded", "")},
    "RuntimeError": {("queued", "attempt"), ("failed", "attempt")},
    "Retry": {("queued", "attempt"), ("failed", "attempt")},
    "Snooze": {("queued", "snooze")},
    "Fail": {("failed", "attempt")},
    "Cancel": {("cancelled", "")},
}


def committed_jobs_are_there(evidence: Evidence) -> Iterator[Broken]:
    """Every committed enqueue is present once, what was rolled back or refused is not, and nothing else is."""
    found = Counter(job.token for job in evidence.jobs if job.token is not None)
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in evidence.lines("committed"):
        least.update(line["tokens"])
        most.update(line["tokens"])
    for line in evidence.lines("unknown"):
        most.update(line["tokens"])
    settled = {*most, *(token for line in evidence.lines("rolled back", "duplicate") for token in line["tokens"])}
    for line in evidence.lines("intent"):
        most.update(token for token in line["tokens"] if token not in settled)  # its producer was stopped there
    for token in {*least, *found}:
        if not least[token] <= found[token] <= most[token]:
            text = f"{found[token]} jobs with the token {token!r}, of {least[token]} to {most[token]} enqueued"
            job_id = next((job.id for job in evidence.jobs if job.token == token), None)
            yield Broken("committed jobs are there", text, job_id)
    present = {job.id for job in evidence.jobs}
    for change in evidence.changes:
        if change.old_state is None and change.job_id not in present:
            yield Broken("committed jobs are there", f"job {change.job_id} is gone", change.job_id)


def jobs_end(evidence: Evidence) -> Iterator[Broken]:
    """After the faults all jobs come to their end; a failed or cancelled one says why.

    A schedule goes on until the workers stop: what it has fired after all had ended may still be queued.
    """
    all_ended = min((line["asked"] for line in evidence.lines("all ended")), default=float("inf"))
    for job in evidence.jobs:
        changes = evidence.changes_of.get(job.id, [])
        fired_late = job.task in SCHEDULES and bool(changes) and changes[0].at >= all_ended
        if job.state not in FINAL and not (fired_late and job.state == "queued"):
            yield Broken("jobs end", f"job {job.id} is {job.state}", job.id)
        if job.state == "failed" and (job.cancel or not job.errors):
            yield Broken("jobs end", f"job {job.id} has failed, asked to cancel or without an error", job.id)


def runs_do_not_overlap(evidence: Evidence) -> Iterator[Broken]:
    """No body begins while the body of an earlier run of the job goes on, as long as that one's lease holds.

    A worker stops its bodies before its lease ends. It cannot while it is frozen, and it cannot stop a plain function.
    """
    promise = "runs do not overlap"
    frozen = intervals(evidence, "freeze")
    died = {line["process"]: line["at"] for line in evidence.lines("exited")}
    died |= {line["process"]: line["at"] for line in evidence.lines("fault") if line["fault"] == "kill"}
    of_job = defaultdict(list)
    for line in evidence.lines("start"):
        end = evidence.ended.get((line["job"], line["run"]))
        stopped = end["at"] if end is not None else died.get(line["pid"], float("inf"))
        of_job[line["job"]].append((line["at"], stopped, line["run"], line["pid"]))
    tasks = {job.id: job.task for job in evidence.jobs}
    for job_id, runs in of_job.items():
        claims = {change.run_count for change in evidence.changes_of.get(job_id, []) if change.starts}
        for number, (_, stopped, run, pid) in enumerate(sorted(runs)):
            if run not in claims:
                yield Broken(promise, f"run {run} of job {job_id} began without a claim", job_id)
            for began, _, other, other_pid in sorted(runs)[number + 1 :]:
                excused = any(at <= began <= over + _NOTICES for at, over in frozen.get(pid, ()))
                excused = excused or (tasks.get(job_id) in BLOCKING and run in _taken_back(evidence, job_id))
                if other == run or (began < stopped and not excused):
                    text = f"run {other} of job {job_id} on {other_pid} began while run {run} went on on {pid}"
                    yield Broken(promise, text, job_id)


def _taken_back(evidence: Evidence, job_id: int) -> set[int]:
    """The runs that ended by a rescue or a hand-back."""
    changes = evidence.changes_of.get(job_id, [])
    moves = pairwise(changes)
    return {
        after.run_count
        for before, after in moves
        if after.ends_run and (after.lost or (after.new_state == "queued" and not spent(before, after)))
    }


def effects_are_made_once(evidence: Evidence) -> Iterator[Broken]:
    """A job that complete_tx ends has one effect if it succeeded, else none."""
    made = Counter(effect.job_id for effect in evidence.effects)
    payments = {job.id: job for job in evidence.jobs if job.task in PAYMENTS}
    for job in payments.values():
        if made[job.id] != (job.state == "succeeded"):
            yield Broken("effects are made once", f"job {job.id} is {job.state}, with {made[job.id]} effects", job.id)
    for job_id in made.keys() - payments.keys():
        yield Broken("effects are made once", f"an effect of job {job_id}, which makes none", job_id)


def limits_hold(evidence: Evidence) -> Iterator[Broken]:
    """When a job starts, no more of its key run than max_running, and no more start in the window than max_starts."""
    policies: dict[str, list[Policy]] = defaultdict(list)
    for policy in sorted(evidence.policies, key=lambda policy: policy.at):
        policies[policy.key].append(policy)
    running: dict[str, set[int]] = defaultdict(set)
    starts: dict[str, list[float]] = defaultdict(list)
    for change in sorted(evidence.changes, key=lambda change: (change.at, change.seq)):
        key = change.limit_key
        if key is None:
            continue
        if change.ends_run:
            running[key].discard(change.job_id)
        if not change.starts:
            continue
        running[key].add(change.job_id)
        valid = _valid(policies[key], change.at)
        most = _most([policy.max_running for policy in valid])
        if len(running[key]) > most:
            text = f"{len(running[key])} jobs of limit {key!r} run, and {most} may: {sorted(running[key])}"
            yield Broken("limits hold", text, change.job_id)
        at = change.started_at or change.at
        starts[key].append(at)
        counted = [sum(one > at - (policy.seconds or 0) for one in starts[key]) for policy in valid]
        if counted and min(counted) > _most([policy.max_starts for policy in valid]):
            text = f"{min(counted)} starts of limit {key!r} in its window: more than it allows"
            yield Broken("limits hold", text, change.job_id)


def _valid(policies: list[Policy], at: float) -> list[Policy]:
    """The policies that a claim at this time may have seen: its commit, and that of a change, take a moment."""
    before = [policy for policy in policies if policy.at <= at - _SLACK]
    around = [policy for policy in policies if at - _SLACK < policy.at <= at + _SLACK]
    return (before[-1:] or [Policy("", 0)]) + around


def _most(numbers: list[int | None]) -> float:
    return max((float("inf") if number is None else number for number in numbers), default=float("inf"))


def unique_keys_are_held_by_one(evidence: Evidence) -> Iterator[Broken]:
    """While a job with a unique key is queued or running there is no other."""
    keys = {job.id: job.unique_key for job in evidence.jobs if job.unique_key is not None}
    holders: dict[str, int] = {}
    # In the order of commits as far as the key goes: who takes it waits for who lets it go.
    for change in sorted(evidence.changes, key=lambda change: change.seq):
        key = keys.get(change.job_id)
        if key is None:
            continue
        if change.new_state in {"queued", "running"}:
            if holders.setdefault(key, change.job_id) != change.job_id:
                yield Broken("unique keys are held by one", f"{key!r} is job {holders[key]}'s, too", change.job_id)
        elif holders.get(key) == change.job_id:
            del holders[key]


def spent(before: Change, after: Change) -> str:
    """What a move has spent."""
    attempts, snoozes = after.attempt - before.attempt, after.snoozes - before.snoozes
    return {(0, 0): "", (1, 0): "attempt", (0, 1): "snooze"}.get((attempts, snoozes), f"{attempts}+{snoozes}")


def counters_add_up(evidence: Evidence) -> Iterator[Broken]:
    """Each change follows from the one before: states, run_count, attempt and snoozes; the row is where they lead."""
    promise = "counters add up"
    jobs = {job.id: job for job in evidence.jobs}
    for job_id, changes in evidence.changes_of.items():
        for before, after in pairwise(changes):
            if after.old_state != before.new_state:
                yield Broken(promise, f"job {job_id} went from {after.old_state}, and was {before.new_state}", job_id)
            if after.run_count - before.run_count != after.starts:
                yield Broken(promise, f"run_count goes from {before.run_count} to {after.run_count}", job_id)
            used = spent(before, after)
            if used not in {"", "attempt", "snooze"} or (used and not after.ends_run):
                yield Broken(promise, f"{before.new_state} to {after.new_state} has spent {used}", job_id)
        job, last = jobs.get(job_id), changes[-1]
        if job is not None and last.new_state is not None:
            ends = (last.new_state, last.run_count, last.attempt, last.snoozes)
            if ends != (job.state, job.run_count, job.attempt, job.snoozes):
                yield Broken(promise, f"job {job_id} is not where its changes lead: {job} and {last}", job_id)
            if job.attempt > job.max_attempts:
                yield Broken(promise, f"{job.attempt} attempts of {job.max_attempts}", job_id)
    for job_id in jobs.keys() - evidence.changes_of.keys():
        yield Broken(promise, f"job {job_id} has no history", job_id)


def outcomes_are_written(evidence: Evidence) -> Iterator[Broken]:
    """What a body came to is what its job came to, unless a rescue took it; and no job succeeds without a body."""
    promise = "outcomes are written"
    tasks = {job.id: job.task for job in evidence.jobs}
    for job_id, changes in evidence.changes_of.items():
        for before, after in pairwise(changes):
            if not after.ends_run or after.new_state is None:
                continue
            run, end = (job_id, after.run_count), evidence.ended.get((job_id, after.run_count))
            if after.new_state == "succeeded" and run not in evidence.started:
                yield Broken(promise, f"run {run[1]} of job {job_id} succeeded, and never began", job_id)
            if after.lost or end is None or end["how"] not in _OUTCOMES:
                continue
            # A plain function cannot be stopped: it may end after its job was handed back.
            handed_back = (after.new_state, spent(before, after)) == ("queued", "")
            if tasks.get(job_id) in BLOCKING and handed_back:
                continue
            came_to = (after.new_state, spent(before, after))
            allowed = _OUTCOMES[end["how"]]
            if after.cancel:
                allowed = allowed | {("cancelled", used) for _, used in allowed if end["how"] != "returned"}
            if came_to not in allowed and not (tasks.get(job_id) in PAYMENTS and after.new_state == "succeeded"):
                text = f"run {run[1]} of job {job_id} ended by {end['how']}, and its job is {came_to}"
                yield Broken(promise, text, job_id)


def rescues_wait_for_the_lease(evidence: Evidence) -> Iterator[Broken]:
    """No job is rescued from a worker that has beaten within its ttl."""
    beats = defaultdict(list)
    gone = {}
    for beat in evidence.beats:
        if beat.gone:
            gone[beat.worker] = beat.at
        else:
            beats[beat.worker].append(beat)
    for change in evidence.changes:
        worker = change.old_worker
        if not change.lost or worker is None or gone.get(worker, float("inf")) < change.at:
            continue
        for beat in beats[worker]:
            if change.at - beat.ttl + _SLACK < beat.at < change.at - _SLACK:
                text = f"job {change.job_id} was rescued {change.at - beat.at:.2f} s after a beat of {worker}"
                yield Broken("rescues wait for the lease", text, change.job_id)
                break


def expired_jobs_do_not_start(evidence: Evidence) -> Iterator[Broken]:
    """No job starts after its expires_at, unless it was requeued, which takes that away."""
    ends = {job.id: job.expires_at for job in evidence.jobs if job.expires_at is not None}
    for change in evidence.changes:
        end = ends.get(change.job_id)
        if change.starts and end is not None and change.started_at is not None and change.started_at > end:
            yield Broken("expired jobs do not start", f"job {change.job_id} started when it had expired", change.job_id)


def workers_stop_in_order(evidence: Evidence) -> Iterator[Broken]:
    """A worker ends when it is asked, with 0, or says which lease or database it has lost."""
    for line in evidence.lines("hung"):
        yield Broken("workers stop in order", f"{line['name']} ({line['process']}) does not end when it is told to")
    spawned = {line["process"]: line["at"] for line in evidence.lines("spawned")}
    outages = [span for spans in intervals(evidence, *OUTAGES).values() for span in spans]
    for line in evidence.lines("exited"):
        disturbed = any(at - 1 <= line["at"] <= over + 15 for at, over in outages)
        # Before it has read its own code, a process ends by the signal itself.
        asked = {0, -9, -15} if line["at"] - spawned.get(line["process"], 0) < _GROWS_UP else {0, -9}
        fine = line["code"] in asked if line["why"] == "asked" else line["why"] in {"lease", "away"}
        if not fine and not (line["why"] == "asked" and disturbed):
            text = f"{line['name']} ({line['process']}) ended with {line['code']}, {line['why']}: {line['said'][-600:]}"
            yield Broken("workers stop in order", text)


CHECKS: tuple[Callable[[Evidence], Iterator[Broken]], ...] = (
    committed_jobs_are_there,
    jobs_end,
    runs_do_not_overlap,
    effects_are_made_once,
    limits_hold,
    unique_keys_are_held_by_one,
    counters_add_up,
    outcomes_are_written,
    rescues_wait_for_the_lease,
    expired_jobs_do_not_start,
    workers_stop_in_order,
    slots_fire_once,
)


def find_broken(evidence: Evidence) -> list[Broken]:
    return [broken for check in CHECKS for broken in check(evidence)]
