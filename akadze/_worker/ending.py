"""Ending tasks that may be waiting for a database that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, patience: float, first: float) -> None:
    """Cancel the tasks; after ``first`` seconds cancel those that go on once more, and wait ``patience`` seconds.

    At the first cancellation psycopg asks the server to stop the statement, and waits for up to ten seconds where the
    server does not answer. At the second it drops the connection.
    """
    going = {task for task in tasks if not task.done()}
    for pause in (first, patience):
        for task in going:
            task.cancel()
        if going:
            _, going = await asyncio.wait(going, timeout=pause)
