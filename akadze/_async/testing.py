"""What tests ask about enqueued jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from akadze._connections import async_reading
from akadze._statement import statement
from akadze.app import Akadze
from akadze.errors import EnqueueError

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
    registered = app.tasks.get(task)
    if registered is None:
        raise AssertionError(f"task {task!r} is not registered on this app, so no job of it was enqueued with it")
    try:
        registered.arguments.to_json(arguments)
    except EnqueueError as error:
        raise AssertionError(f"no job can have these arguments: {error}") from None
    async with async_reading(source) as caller:
        rows = await caller.rows(_LIST_ACTIVE_ARGS, task=task)
    if not any(registered.arguments.same(json.loads(row["args"]), arguments) for row in rows):
        raise AssertionError(
            f"no queued or running job of task {task!r} has these arguments: {len(rows)} with other arguments"
        )
