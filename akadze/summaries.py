"""What the reading calls return. None of them holds arguments, results or errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from akadze._published import publish

__all__ = ["JobSummary", "LimitSummary", "QueueSnapshot", "StateCount", "WorkerSummary"]


@dataclass(frozen=True)
class JobSummary:
    """One job, as ``list_jobs`` returns it."""

    id: int
    task: str
    queue: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    meta: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)


@dataclass(frozen=True)
class StateCount:
    """How many jobs of a queue are in a state."""

    queue: str
    state: str
    jobs: int


@dataclass(frozen=True)
class QueueSnapshot:
    """Counts per queue and state, the wait of the oldest ready job (None when none is ready), and the running jobs."""

    counts: tuple[StateCount, ...]
    lag: timedelta | None
    busy: int


@dataclass(frozen=True)
class LimitSummary:
    """The policy of one limit key; None means that kind of limit is not set."""

    key: str
    max_running: int | None
    max_starts: int | None
    window: timedelta | None


@dataclass(frozen=True)
class WorkerSummary:
    """One registered worker, by the database's clock."""

    id: UUID
    hostname: str
    pid: int
    queues: tuple[str, ...]
    started_at: datetime
    heartbeat_at: datetime


publish(JobSummary, StateCount, QueueSnapshot, LimitSummary, WorkerSummary)
