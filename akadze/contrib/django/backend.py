"""A backend for ``django.tasks``, which comes with Django 6.0: its tasks become jobs of akadze."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import django

if django.VERSION < (6, 0):
    raise ImportError(
        f"akadze.contrib.django.backend is for django.tasks, which Django {django.get_version()} does not have: use "
        "Django 6.0 or newer, or enqueue with Task.using(session=connection)"
    )

from django.core import checks
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.signals import task_enqueued
from django.utils import timezone

from akadze.contrib.django._app import get_app
from akadze.contrib.django._settings import postgresql, read_settings
from akadze.contrib.django._task_results import read_result
from akadze.contrib.django._task_runs import bind
from akadze.errors import AkadzeError

__all__ = ["AkadzeBackend", "AkadzeTask"]

_OPTIONS = ("database", "max_attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class AkadzeTask(Task):
    """A task with akadze's own options, which ``using`` takes as well (and ``@task``, from Django 6.1 on).

    ``limit_key`` names limits (see ``akadze.sync.set_limit``). While a job with ``unique_key`` is queued or running,
    another enqueue with that key raises DuplicateJob. ``max_attempts`` is the budget including the first run.
    """

    limit_key: str | None = None
    unique_key: str | None = None
    max_attempts: int | None = None

    def using(
        self,
        *,
        limit_key: str | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
        **changes: Any,
    ) -> AkadzeTask:
        """Return a task with changed options; those that are None stay as they are."""
        own = {"limit_key": limit_key, "unique_key": unique_key, "max_attempts": max_attempts}
        # Not super(): in a dataclass with slots it would look for the class that the decorator has replaced.
        changed = Task.using(self, **changes)
        both: AkadzeTask = replace(changed, **{name: value for name, value in own.items() if value is not None})
        return both


class AkadzeBackend(BaseTaskBackend):
    """Enqueues on Django's connection, in its transaction, as jobs that ``manage.py akadze_worker`` runs.

    ``OPTIONS`` may have ``database``, the alias to enqueue on (that of the setting AKADZE by default), and
    ``max_attempts``, for tasks that do not say it (3 by default). Priorities and queue names are those of the job.
    """

    task_class = AkadzeTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Insert a job, in the transaction of the database's connection, and return its result, which is READY.

        Raises TypeError or ValueError for arguments that are no JSON by Django's rules, EnqueueError for what JSON or
        PostgreSQL cannot hold beyond those (NaN, keys that are no text, NUL characters) and for options that are not
        allowed, and DuplicateJob for a ``unique_key`` that is taken. All of them leave the transaction usable.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        connection = postgresql(self.options.get("database"))
        job_id = bind(get_app(), result, connection, default_attempts=self.options.get("max_attempts", 3))
        result = replace(result, id=str(job_id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return what the table says of a task. Raises TaskResultDoesNotExist if there is no such job (any more)."""
        return read_result(postgresql(self.options.get("database")).alias, result_id)

    def check(self, **_given: Any) -> list[checks.CheckMessage]:
        """Check the options (akadze.E004), and that the worker looks at the same database (akadze.W001)."""
        place = f"TASKS[{self.alias!r}]['OPTIONS']"
        unknown = [name for name in self.options if name not in _OPTIONS]
        if unknown:
            return [checks.Error(f"{place} has {unknown[0]!r}: it takes {' and '.join(_OPTIONS)}", id="akadze.E004")]
        if "database" not in self.options:
            return []  # that of AKADZE, which has a check of its own
        try:
            used, served = postgresql(self.options.get("database")).alias, read_settings().database
        except AkadzeError as error:
            return [checks.Error(f"{place}: {error}", id="akadze.E004")]
        if used == served:
            return []
        message = f"{place} enqueues on {used!r}, and akadze_worker serves the database of AKADZE, {served!r}"
        return [checks.Warning(message, id="akadze.W001")]
