"""The calls of ``akadze``, blocking: the same names, parameters, results and errors."""

from __future__ import annotations

from akadze._sync.jobs import list_jobs, request_cancel, requeue
from akadze._sync.limits import clear_limit, list_limits, set_limit
from akadze._sync.queues import list_paused_queues, pause_queue, queue_snapshot, resume_queue
from akadze._sync.schema import applied_versions, migrate
from akadze._sync.workers import list_workers
from akadze.context import sync_current as current

__all__ = [
    "applied_versions",
    "clear_limit",
    "current",
    "list_jobs",
    "list_limits",
    "list_paused_queues",
    "list_workers",
    "migrate",
    "pause_queue",
    "queue_snapshot",
    "request_cancel",
    "requeue",
    "resume_queue",
    "set_limit",
]
