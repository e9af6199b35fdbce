"""What tests ask about enqueued jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from akadze import _rows
from akadze._connections import async_reading
from akadze._statement import statement
from akadze.app import Akadze
from akadze.errors import EnqueueError
from akadze.job import Job
from akadze.task import Task

_LIST_ENQUEUED = statement("enqueued", "list_enqueued")
_LIST_ACTIVE_ARGS = statement("jobs", "list_active_args")


async def assert_enqueued(app: Akadze, task: str, /, **arguments: Any) -> None:
    """Raise AssertionError unless a queued or running job has this task and these arguments.

    Arguments are compared in their stored JSON form, so models, UUID and datetime can be passed as the task receives
    them. Reads committed rows. A task that is not registered and arguments that do not fit it are AssertionErrors too.
    """
    if True:  # ASYNC
        engine = app.engine
    else:
        engine = app.sync_engine
    await assert_enqueued_on(engine, app, task, arguments)


async def assert_enqueued_on(source: Any, app: Akadze, task: str, arguments: Mapping[str, Any]) -> None:
    """The same, reading through an engine or on an open connection, whose own rows count as well."""
    matching, others = await _find(source, app, task, arguments)
    if not matching:
        raise AssertionError(
            f"no queued or running job of task {task!r} has these arguments: {others} with other arguments"
        )


async def refute_enqueued_on(source: Any, app: Akadze, task: str, arguments: Mapping[str, Any]) -> None:
    """Raise AssertionError if a queued or running job has this task and these arguments, or any if none are given."""
    if arguments:
        matching, _ = await _find(source, app, task, arguments)
        kind = "have these arguments"
    else:
        matching = len(await enqueued_on(source, _registered(app, task).name))
        kind = "are there"
    if matching:
        raise AssertionError(f"{matching} queued or running jobs of task {task!r} {kind}")


async def enqueued_on(source: Any, task: str | None) -> list[Job]:
    """Return the queued and running jobs, of one task or of all, in the order in which they came in."""
    async with async_reading(source) as caller:
        rows = await caller.rows(_LIST_ENQUEUED, task=task)
    return [_rows.job(row) for row in rows]


async def _find(source: Any, app: Akadze, task: str, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many queued and running jobs of the task have these arguments, and how many have others."""
    declared = _registered(app, task).arguments
    try:
        declared.to_json(arguments)
    except EnqueueError as error:
        raise AssertionError(f"no job can have these arguments: {error}") from None
    async with async_reading(source) as caller:
        rows = await caller.rows(_LIST_ACTIVE_ARGS, task=task)
    matching = sum(declared.same(json.loads(row["args"]), arguments) for row in rows)
    return matching, len(rows) - matching


def _registered(app: Akadze, task: str) -> Task[Any]:
    registered = app.tasks.get(task)
    if registered is None:
        raise AssertionError(f"task {task!r} is not registered on this app, so no job of it was enqueued with it")
    return registered
