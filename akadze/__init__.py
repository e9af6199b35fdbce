"""akadze: a task queue whose broker is the PostgreSQL that your application already has.

This is the async API; ``akadze.sync`` has the same calls, blocking.
"""

from __future__ import annotations

from akadze._async.jobs import list_jobs, request_cancel, requeue
from akadze._async.limits import clear_limit, list_limits, set_limit
from akadze._async.queues import list_paused_queues, pause_queue, queue_snapshot, resume_queue
from akadze._async.schema import applied_versions, migrate
from akadze._async.workers import list_workers
from akadze._schedules import ScheduleSpec
from akadze.app import Akadze
from akadze.context import current
from akadze.errors import AkadzeError, DuplicateJob, EnqueueError
from akadze.outcomes import BackoffPolicy, Cancel, Fail, Retry, Snooze
from akadze.summaries import JobSummary, LimitSummary, QueueSnapshot, StateCount, WorkerSummary
from akadze.worker import Worker

__version__ = "0.6.0"

__all__ = [
    "Akadze",
    "AkadzeError",
    "BackoffPolicy",
    "Cancel",
    "DuplicateJob",
    "EnqueueError",
    "Fail",
    "JobSummary",
    "LimitSummary",
    "QueueSnapshot",
    "Retry",
    "ScheduleSpec",
    "Snooze",
    "StateCount",
    "Worker",
    "WorkerSummary",
    "__version__",
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
