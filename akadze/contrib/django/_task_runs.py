"""How tasks of ``django.tasks`` become jobs, and how a worker runs them."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from datetime import datetime
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any

import django.tasks.base
from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from akadze._options import check_queue
from akadze._sync.bound import BoundTask
from akadze.app import Akadze
from akadze.context import Run, running
from akadze.contrib.django._task_results import ASYNC, PLAIN, load_task, task_errors, worker_ids
from akadze.outcomes import Cancel, Fail, Retry, Snooze


def register_where_used(app: Akadze) -> None:
    """Register the two tasks that run Django's, if a backend of ``TASKS`` is akadze's. Safe to call again."""
    queues = used_queues()
    if queues is None:
        return
    queue = "default" if "default" in queues or not queues else min(queues)
    for name, fn in ((PLAIN, run_task), (ASYNC, run_async_task)):
        if name not in app.tasks or app.tasks[name].fn is not fn:
            app.register(fn, name=name, queue=queue)


def used_queues() -> set[str] | None:
    """Return the queues of akadze's backends, none where they take any name; None if there is no such backend."""
    from akadze.contrib.django.backend import AkadzeBackend

    backends = [backend for backend in task_backends.all() if isinstance(backend, AkadzeBackend)]
    return set().union(*(backend.queues for backend in backends)) if backends else None


def bind(app: Akadze, result: TaskResult, connection: Any, *, default_attempts: int) -> int:
    """Insert the job of a result that has no id yet, on Django's connection, and return the id."""
    task = result.task
    # The queue is the job's own here, not that of the task that runs it.
    runner = copy.copy(app.tasks[ASYNC if iscoroutinefunction(task.func) else PLAIN])
    runner.queue = check_queue(task.queue_name)
    attempts = getattr(task, "max_attempts", None)
    run_after = task.run_after
    if run_after is not None and timezone.is_naive(run_after):
        run_after = timezone.make_aware(run_after)
    bound: BoundTask[Any] = BoundTask(
        runner,
        session=connection,
        delay=None,
        run_at=run_after,
        priority=task.priority,
        max_attempts=default_attempts if attempts is None else attempts,
        unique_key=getattr(task, "unique_key", None),
        limit_key=getattr(task, "limit_key", None),
        expires_at=None,
        meta={"django_task": task.module_path},
    )
    arguments = {
        "path": task.module_path,
        "args": result.args,
        "kwargs": result.kwargs,
        "backend": result.backend,
        "enqueued_at": result.enqueued_at,
    }
    if task.run_after is not None:
        arguments["run_after"] = task.run_after
    if attempts is not None:
        # The job's own may be the default, or more after a requeue.
        arguments["max_attempts"] = attempts
    return bound._enqueue(arguments)  # noqa: SLF001 - enqueue() does not tell the id


def run_task(
    path: str,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    enqueued_at: datetime,
    run_after: datetime | None = None,
    max_attempts: int | None = None,
) -> Any:
    """Run a plain function of ``django.tasks``, and send the signals."""
    run, result = _begun(path, args, kwargs, backend, enqueued_at, run_after, max_attempts)
    sender = type(result.task.get_backend())
    task_started.send_robust(sender, task_result=result)
    try:
        value = normalize_json(result.task.call(*_arguments(result), **result.kwargs))
    except Exception as error:
        told = _told(error)
        if _ended_with(told, run, result):
            task_finished.send_robust(sender, task_result=result)
        raise told from None
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    task_finished.send_robust(sender, task_result=result)
    return value


async def run_async_task(
    path: str,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    enqueued_at: datetime,
    run_after: datetime | None = None,
    max_attempts: int | None = None,
) -> Any:
    """Run an async function of ``django.tasks``, and send the signals."""
    run, result = _begun(path, args, kwargs, backend, enqueued_at, run_after, max_attempts)
    sender = type(result.task.get_backend())
    await task_started.asend_robust(sender, task_result=result)
    try:
        value = normalize_json(await result.task.acall(*_arguments(result), **result.kwargs))
    except Exception as error:
        told = _told(error)
        if _ended_with(told, run, result):
            await task_finished.asend_robust(sender, task_result=result)
        raise told from None
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    await task_finished.asend_robust(sender, task_result=result)
    return value


def _begun(
    path: str,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    enqueued_at: datetime,
    run_after: datetime | None,
    max_attempts: int | None,
) -> tuple[Run, TaskResult]:
    run = running("a task of django.tasks")
    job, now = run.job, timezone.now()
    task = load_task(
        path,
        priority=job.priority,
        queue_name=job.queue,
        run_after=run_after,
        backend=backend,
        limit_key=job.limit_key,
        unique_key=job.unique_key,
        max_attempts=max_attempts,
    )
    return run, TaskResult(
        task=task,
        id=str(job.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=task_errors(job.errors),
        worker_ids=worker_ids(job.run_count, job.worker_id),
    )


def _arguments(result: TaskResult) -> Sequence[Any]:
    if result.task.takes_context:
        return (TaskContext(task_result=result), *result.args)
    return tuple(result.args)


def _ended_with(error: Exception, run: Run, result: TaskResult) -> bool:
    """Note in the result how the run has ended; tell whether that ends the job."""
    if run.completed:
        _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
        return True
    job = run.job
    if isinstance(error, Snooze) or (job.attempt + 1 < job.max_attempts and not isinstance(error, Fail | Cancel)):
        return False
    result.errors.extend(task_errors([{"error": type(error).__name__, "message": str(error)}]))
    _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
    return True


def _told(error: Exception) -> Exception:
    """Return an error for the job's errors that tells class and traceback as Django's TaskError does.

    What has a meaning of its own for akadze is returned as it is.
    """
    if isinstance(error, Retry | Snooze | Fail | Cancel):
        return error
    kind = type(error)
    told: type[Exception] = type(f"{kind.__module__}.{kind.__qualname__}", (Exception,), {})
    inside = _inside(error.__traceback__)
    return told("".join(traceback.format_exception(kind, error, inside))).with_traceback(inside)


def _inside(position: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the task: job rows have room for a short one."""
    own = (__file__, django.tasks.base.__file__)
    found = position
    while found is not None and found.tb_frame.f_code.co_filename in own:
        found = found.tb_next
    return found or position


def _set(result: TaskResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
