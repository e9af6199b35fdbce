"""Tasks of django.tasks, which the backend of akadze runs. For Django 6.0 and newer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.tasks import TaskContext, task

from akadze import Cancel, Fail, Retry, Snooze
from akadze.contrib.django import complete_tx
from shop.models import Note


@task
def add(left: int, right: int = 1) -> int:
    return left + right


@task(priority=7, queue_name="mail")
async def add_async(left: int, right: int = 1) -> int:
    return left + right


@task
def note(text: str) -> None:
    Note.objects.create(text=text)


@task
async def note_async(text: str) -> int:
    await Note.objects.acreate(text=text)
    return await Note.objects.acount()


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task(takes_context=True)
def attempts(context: TaskContext, until: int) -> list[Any]:
    """Fail before the attempt `until`, then tell what the result of the context says."""
    if context.attempt < until:
        raise Retry(timedelta(0))
    result = context.task_result
    return [context.attempt, result.id, result.status, result.task.module_path, len(result.worker_ids)]


@task(takes_context=True)
async def attempts_async(context: TaskContext) -> int:
    return context.attempt


@task(takes_context=True)
def options(context: TaskContext) -> list[Any]:
    """Tell which of akadze's options the task has."""
    of = context.task_result.task
    return [of.limit_key, of.unique_key, of.max_attempts]


class Trouble(Exception):
    """An error of this project."""


@task
def trouble(text: str) -> None:
    raise Trouble(text)


@task
async def trouble_async(text: str) -> None:
    raise Trouble(text)


@task
def not_json() -> object:
    return object()


@task
def end(how: str) -> None:
    if how == "fail":
        raise Fail("no use")
    if how == "cancel":
        raise Cancel("not wanted")
    if how == "snooze":
        raise Snooze(timedelta(hours=1))
    if how == "exit":
        raise SystemExit(3)


@task
def finish(text: str, then: str = "") -> str:
    with complete_tx():
        Note.objects.create(text=text)
    if then == "raise":
        raise Trouble("after the block")
    return "is not stored"


def no_task(text: str) -> None:
    Note.objects.create(text=text)
