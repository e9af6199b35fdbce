"""What tests ask about enqueued jobs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from akadze import _rows
from akadze._connections import async_reading
from akadze._statement import statement
from akadze.app import Akadze
from akadze.errors import AkadzeError, EnqueueError
from akadze.job import Job
from akadze.task import Task, task_name

_LIST_ENQUEUED = statement("enqueued", "list_enqueued")
_LIST_ACTIVE_ARGS = statement("jobs", "list_active_args")

#: So many jobs are named in a failure.
_TOLD = 5


async def assert_enqueued(app: Akadze, task: str | Task[Any], /, **arguments: Any) -> None:
    """Raise AssertionError unless a queued or running job has this task and these arguments.

    Arguments are compared in their stored JSON form, so models, UUID and datetime can be passed as the task receives
    them. ``task`` is a task or its name. Reads committed rows. A task that is not registered and arguments that do not
    fit it are AssertionErrors too. AkadzeError for what is no app, and no task.
    """
    __tracebackhide__ = True
    if not isinstance(app, Akadze):
        raise AkadzeError(f"app is of type {type(app).__name__}: pass the Akadze app whose jobs are looked at")
    if True:  # ASYNC
        engine = app.engine
    else:
        engine = app.sync_engine
    await assert_enqueued_on(engine, app, task, arguments)


async def assert_enqueued_on(source: Any, app: Akadze, task: str | Task[Any], arguments: Mapping[str, Any]) -> None:
    """The same, reading through an engine or on an open connection, whose own rows count as well."""
    __tracebackhide__ = True
    name = task_name(task)
    found = await _find(source, app, name, arguments)
    if all(found.values()):
        there = _told(found) if found else await _others(source)
        raise AssertionError(f"no queued or running job of task {name!r} has these arguments: {there}")


async def refute_enqueued_on(source: Any, app: Akadze, task: str | Task[Any], arguments: Mapping[str, Any]) -> None:
    """Raise AssertionError if a queued or running job has this task and these arguments, or any if none are given."""
    __tracebackhide__ = True
    name = task_name(task)
    if arguments:
        matching = sum(not names for names in (await _find(source, app, name, arguments)).values())
        kind = " with these arguments"
    else:
        matching = len(await enqueued_on(source, _registered(app, name).name))
        kind = ""
    if matching:
        jobs = "job" if matching == 1 else "jobs"
        raise AssertionError(f"found {matching} queued or running {jobs} of task {name!r}{kind}")


async def enqueued_on(source: Any, task: str | Task[Any] | None) -> list[Job]:
    """Return the queued and running jobs, of one task or of all, in the order in which they came in."""
    name = None if task is None else task_name(task)
    async with async_reading(source) as caller:
        rows = await caller.rows(_LIST_ENQUEUED, task=name)
    return [_rows.job(row) for row in rows]


async def _find(source: Any, app: Akadze, task: str, arguments: Mapping[str, Any]) -> dict[int, list[str]]:
    """Return the queued and running jobs of the task by id, each with the names of its arguments that are others."""
    declared = _registered(app, task).arguments
    try:
        declared.to_json(arguments)
    except EnqueueError as error:
        raise AssertionError(f"no job can have these arguments: {error}") from None
    async with async_reading(source) as caller:
        rows = await caller.rows(_LIST_ACTIVE_ARGS, task=task)
    return {row["id"]: declared.differing(json.loads(row["args"]), arguments) for row in rows}


def _told(found: Mapping[int, list[str]]) -> str:
    # Names only: values may be personal data, and what a test prints is kept in many places.
    told = [f"job {job_id} in {' and '.join(names)}" for job_id, names in found.items()]
    more = ", ..." if len(told) > _TOLD else ""
    return f"{len(found)} with other arguments, which differ: {', '.join(told[:_TOLD])}{more}"


async def _others(source: Any) -> str:
    tasks = Counter(job.task for job in await enqueued_on(source, None))
    if not tasks:
        return "no job of any task is queued or running (uncommitted ones are seen on their own session only)"
    return "of other tasks there are " + ", ".join(f"{task!r} ({number})" for task, number in tasks.items())


def _registered(app: Akadze, task: str) -> Task[Any]:
    registered = app.tasks.get(task)
    if registered is None:
        raise AssertionError(f"task {task!r} is not registered on this app, so no job of it was enqueued with it")
    return registered
