"""Ending tasks that may be waiting for a database that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, patience: float, first: float) -> None:
    """Cancel the tasks; after ``first`` seconds cancel those that go on once more, and wait ``patience`` seconds.

    At the first cancellation psycopg asks the server to stop the statement, and waits for up to ten seconds where the
    server does not answer. At the second it drops the connection. What the tasks raise is forgotten.
    """
    tasks = [*tasks]
    for task in tasks:
        task.add_done_callback(_forget_error)
    going = {task for task in tasks if not task.done()}
    for pause in (first, patience):
        for task in going:
            task.cancel()
        if going:
            _, going = await asyncio.wait(going, timeout=pause)


def _forget_error(task: asyncio.Task[Any]) -> None:
    # asyncio reports an error that nobody has looked at.
    if not task.cancelled():
        task.exception()
