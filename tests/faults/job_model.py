"""What the tables must hold, worked out in Python: states and counters, limits, unique keys, leases, the claim order.

It shares nothing with the product. Times are seconds on one clock, which `now` is a reading of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tests.claims.picker import Waiting, pick

#: The tasks that the workers know.
KNOWN = frozenset({"work", "also", "side"})
ACTIVE = frozenset({"queued", "running"})
FINAL = frozenset({"succeeded", "failed", "cancelled"})

Run = tuple[int, int]


@dataclass
class ModelJob:
    id: int
    task: str
    queue: str
    priority: int
    max_attempts: int
    run_at: float
    expires_at: float | None = None
    unique_key: str | None = None
    limit_key: str | None = None
    state: str = "queued"
    attempt: int = 0
    run_count: int = 0
    snoozes: int = 0
    owner: UUID | None = None
    errors: list[str] = field(default_factory=list)
    cancel: bool = False
    expired: bool = False
    result: object = None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    def doomed(self, now: float) -> bool:
        return self.state == "queued" and (self.cancel or (self.expires_at is not None and self.expires_at <= now))

    def add_error(self, name: str) -> None:
        self.errors = [*self.errors, name][-10:]

    def end_queued(self) -> None:
        self.state = "cancelled"
        self.expired = not self.cancel


@dataclass
class Limit:
    max_running: int | None = None
    max_starts: int | None = None
    window: float | None = None


@dataclass(frozen=True)
class Ending:
    """How a run ended: success, error, retry, snooze, fail, cancel or hand_back, and the delay that it asked for."""

    kind: str
    delay: float


class Model:
    def __init__(self) -> None:
        self.jobs: dict[int, ModelJob] = {}
        self.limits: dict[str, Limit] = {}
        self.starts: dict[str, list[float]] = {}
        self.paused: set[str] = set()
        #: Until when each worker's lease lasts. No entry: its row is gone.
        self.leases: dict[UUID, float] = {}
        #: Jobs whose rows an open transaction of somebody holds.
        self.held: set[int] = set()

    def holder(self, key: str | None) -> ModelJob | None:
        found = [job for job in self.jobs.values() if key is not None and job.unique_key == key and job.active]
        assert len(found) <= 1, f"{key} is held by {found}"
        return found[0] if found else None

    def startable(self, job: ModelJob, now: float) -> bool:
        return (
            job.state == "queued"
            and job.task in KNOWN
            and job.run_at <= now
            and not job.doomed(now)
            and job.queue not in self.paused
            and job.id not in self.held
        )

    def running(self, key: str) -> int:
        return sum(job.state == "running" and job.limit_key == key for job in self.jobs.values())

    def starts_in_window(self, key: str, now: float) -> int:
        window = self.limits[key].window
        return 0 if window is None else sum(at > now - window for at in self.starts.get(key, ()))

    def room(self, key: str, now: float) -> int | None:
        """How many more jobs of the key may start; None: no limit."""
        limit = self.limits.get(key)
        if limit is None:
            return None
        rooms = [] if limit.max_running is None else [limit.max_running - self.running(key)]
        rooms += [] if limit.max_starts is None else [limit.max_starts - self.starts_in_window(key, now)]
        return min(rooms, default=None)

    def picks(
        self, candidates: Iterable[int], queue: str, slots: int, *, limited: bool, fair: bool, now: float
    ) -> list[int]:
        """What a claim for one queue has to take, in its order; without ``limited`` it leaves limited keys alone."""
        jobs = [self.jobs[job_id] for job_id in candidates if self.jobs[job_id].queue == queue]
        if not limited:
            jobs = [job for job in jobs if job.limit_key not in self.limits]
        rooms = {key: self.room(key, now) for key in self.limits}
        running = Counter(
            job.limit_key or "" for job in self.jobs.values() if job.state == "running" and job.queue == queue
        )
        waiting = [Waiting(job.id, queue, job.priority, job.run_at, job.limit_key or "") for job in jobs]  # type: ignore[arg-type] # only compared
        return pick(
            waiting,
            slots,
            room={key: room for key, room in rooms.items() if room is not None},
            running=running,
            fair=fair,
        )

    def claim(self, claimed: Mapping[int, float], owner: UUID, slots: Mapping[str, int], now: float) -> None:
        """Start jobs at the given times, which a claim has taken; fail if it might not have."""
        for job_id, at in claimed.items():
            job = self.jobs[job_id]
            assert self.startable(job, now), f"{job} was not to be claimed"
            job.state, job.owner = "running", owner
            job.run_count += 1
            limit = self.limits.get(job.limit_key or "")
            if limit is not None and limit.max_starts is not None:
                self.starts.setdefault(job.limit_key or "", []).append(at)
        per_queue = Counter(self.jobs[job_id].queue for job_id in claimed)
        assert all(count <= slots[queue] for queue, count in per_queue.items()), (per_queue, slots)
        for key in {self.jobs[job_id].limit_key for job_id in claimed} & set(self.limits):
            assert key is not None
            room = self.room(key, now)
            assert room is None or room >= 0, f"limit {key} has let {-room} too many start"

    def owns(self, run: Run, owner: UUID) -> bool:
        job = self.jobs[run[0]]
        return job.state == "running" and job.run_count == run[1] and job.owner == owner

    def finish(self, run: Run, owner: UUID, ending: Ending, now: float) -> bool:
        """Write how a run ended, and tell whether it was the owner's to write."""
        if not self.owns(run, owner) or run[0] in self.held:
            return False
        job = self.jobs[run[0]]
        job.owner = None
        match ending.kind:
            case "success":
                job.state, job.result = "succeeded", {"run": run[1]}
                return True
            case "snooze":
                job.snoozes += 1
                job.state = "queued"
            case "hand_back":
                job.state = "queued"
            case "cancel":
                job.state = "cancelled"
                job.add_error("Cancel")
            case kind:
                job.attempt += 1
                job.add_error({"error": "RuntimeError", "retry": "Retry", "fail": "Fail"}[kind])
                job.state = "failed" if kind == "fail" or job.attempt >= job.max_attempts else "queued"
        if job.cancel:
            job.state = "cancelled"
        if job.state == "queued" and ending.kind != "hand_back":
            job.run_at = now + ending.delay
        return True

    def complete(self, run: Run, owner: UUID) -> bool:
        """End a run by complete_tx, and tell whether it was the owner's to end."""
        if not self.owns(run, owner):
            return False
        job = self.jobs[run[0]]
        job.state, job.owner = "succeeded", None
        return True

    def lost(self, now: float) -> list[ModelJob]:
        """The jobs that a rescue has to take back."""
        return [
            job
            for job in self.jobs.values()
            if job.state == "running" and job.id not in self.held and self.leases.get(job.owner, -1.0) <= now  # type: ignore[arg-type] # running: it has an owner
        ]

    def rescue(self, job: ModelJob) -> None:
        job.attempt += 1
        job.owner = None
        job.add_error("WorkerLost")
        job.state = "cancelled" if job.cancel else "failed" if job.attempt >= job.max_attempts else "queued"

    def doomed(self, queues: Collection[str] | None, now: float) -> list[ModelJob]:
        """The queued jobs that upkeep has to cancel."""
        return [
            job
            for job in self.jobs.values()
            if job.doomed(now) and job.id not in self.held and (queues is None or job.queue in queues)
        ]

    def requeue(self, job: ModelJob, now: float) -> bool:
        """Put a failed job back, and tell whether that was allowed."""
        if job.state != "failed" or self.holder(job.unique_key) is not None:
            return False
        job.state, job.run_at, job.expires_at, job.expired, job.cancel = "queued", now, None, False, False
        job.max_attempts = max(job.max_attempts, job.attempt + 1)
        return True
