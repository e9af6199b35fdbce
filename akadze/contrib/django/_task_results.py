"""Jobs of ``django.tasks`` as the results that Django knows."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string

import akadze
from akadze._article import with_article
from akadze._states import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED
from akadze.contrib.django.models import Job
from akadze.errors import AkadzeError

#: The names of the two tasks of akadze, by whether the function is awaited.
PLAIN, ASYNC = "django.task", "django.async_task"

#: What akadze's tasks have beyond Django's.
_OWN_OPTIONS = ("limit_key", "unique_key", "max_attempts")

_STATUS = {
    QUEUED: TaskResultStatus.READY,
    RUNNING: TaskResultStatus.RUNNING,
    SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    FAILED: TaskResultStatus.FAILED,
    CANCELLED: TaskResultStatus.FAILED,
}
_ENDED = (SUCCEEDED, FAILED, CANCELLED)
_GREATEST_ID = 2**63 - 1


def load_task(path: str, **options: Any) -> Task:
    """Return the task at a path, with options as its ``using`` takes them.

    Raises AkadzeError for what is no task: nothing else is ever run.
    """
    found = import_string(path)
    if not isinstance(found, Task):
        raise AkadzeError(
            f"{path} is {with_article(type(found))}, not a task of django.tasks: keep the decorator @task"
        )
    if not hasattr(found, "limit_key"):
        # One of another backend's kind.
        options = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    return found.using(**options)


def read_result(alias: str, result_id: str) -> TaskResult:
    """Return the result of the job with this id. Raises TaskResultDoesNotExist if there is none."""
    if not (isinstance(result_id, str) and result_id.isascii() and result_id.isdigit()):
        raise TaskResultDoesNotExist(result_id)
    job = Job.objects.using(alias).filter(pk=min(int(result_id), _GREATEST_ID), task__in=(PLAIN, ASYNC)).first()
    if job is None:
        raise TaskResultDoesNotExist(result_id)
    given: Mapping[str, Any] = job.args
    result = TaskResult(
        task=load_task(
            given["path"],
            priority=job.priority,
            queue_name=job.queue,
            run_after=_instant(given.get("run_after")),
            backend=given["backend"],
            limit_key=job.limit_key,
            unique_key=job.unique_key,
            max_attempts=given.get("max_attempts"),
        ),
        id=str(job.pk),
        status=_STATUS[job.state],
        # As it was told when it was enqueued; the database's clock may differ.
        enqueued_at=_instant(given["enqueued_at"]),
        started_at=job.started_at,
        finished_at=job.finished_at if job.state in _ENDED else None,
        last_attempted_at=job.started_at,
        args=given["args"],
        kwargs=given["kwargs"],
        backend=given["backend"],
        errors=task_errors(job.errors),
        worker_ids=worker_ids(job.run_count, job.worker_id),
    )
    if job.state == CANCELLED and (not job.errors or job.errors[-1]["error"] != "Cancel"):
        reason = "it was not started before it expired" if job.expired else "its cancellation was asked for"
        result.errors.append(TaskError(exception_class_path="akadze.Cancel", traceback=f"cancelled: {reason}"))
    object.__setattr__(result, "_return_value", job.result)
    return result


def task_errors(errors: Sequence[Mapping[str, str]]) -> list[TaskError]:
    return [TaskError(exception_class_path=_path(entry["error"]), traceback=entry["message"]) for entry in errors]


def worker_ids(run_count: int, worker_id: Any) -> list[str]:
    """One for each start: only the worker that runs the job now is known."""
    known = [] if worker_id is None else [str(worker_id)]
    return ["unknown"] * (run_count - len(known)) + known


def _path(name: str) -> str:
    """Where the class is. Errors of a task have a full path; others, of akadze and of hooks, their class's name."""
    if "." in name:
        return name
    for module in (akadze, builtins):
        if isinstance(getattr(module, name, None), type):
            return f"{module.__name__}.{name}"
    return "akadze.AkadzeError"


def _instant(text: str | None) -> datetime | None:
    found: datetime | None = None if text is None else parse_datetime(text)
    return found
