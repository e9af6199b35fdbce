"""akadze: a task queue whose broker is the PostgreSQL that your application already has.

This is the async API; ``akadze.sync`` has the same calls, blocking.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, whose import alone takes longer than all that is left here
if TYPE_CHECKING:
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

# Imported at the first use: all of it takes a second, and a worker that is starting has to heed signals before that.
_HOMES = {
    "akadze._async.jobs": ("list_jobs", "request_cancel", "requeue"),
    "akadze._async.limits": ("clear_limit", "list_limits", "set_limit"),
    "akadze._async.queues": ("list_paused_queues", "pause_queue", "queue_snapshot", "resume_queue"),
    "akadze._async.schema": ("applied_versions", "migrate"),
    "akadze._async.workers": ("list_workers",),
    "akadze._schedules": ("ScheduleSpec",),
    "akadze.app": ("Akadze",),
    "akadze.context": ("current",),
    "akadze.errors": ("AkadzeError", "DuplicateJob", "EnqueueError"),
    "akadze.outcomes": ("BackoffPolicy", "Cancel", "Fail", "Retry", "Snooze"),
    "akadze.summaries": ("JobSummary", "LimitSummary", "QueueSnapshot", "StateCount", "WorkerSummary"),
    "akadze.worker": ("Worker",),
}
_MODULES = (
    "app", "context", "errors", "hooks", "job", "metrics", "outcomes", "summaries", "sync", "task", "testing", "worker",
)  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        for home, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(importlib.import_module(home), name)
                return value
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
