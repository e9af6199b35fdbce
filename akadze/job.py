"""The job that hooks and a running task see."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """One row of ``akadze.jobs`` as it was when it was read. Changing it does not change the row."""

    id: int
    task: str
    queue: str
    priority: int
    state: str
    args: dict[str, Any]
    run_count: int
    attempt: int
    max_attempts: int
    snoozes: int
    unique_key: str | None
    limit_key: str | None
    worker_id: UUID | None
    errors: list[dict[str, str]]
    result: Any
    cancel_requested_at: datetime | None
    expires_at: datetime | None
    expired: bool = False
    meta: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        # Arguments, results and errors stay out of logs and tracebacks.
        return (
            f"Job(id={self.id}, task={self.task!r}, queue={self.queue!r}, state={self.state!r}, attempt={self.attempt})"
        )
