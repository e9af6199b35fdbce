"""A loop that goes on when a task of somebody's own lets SystemExit or KeyboardInterrupt out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from akadze._log import get_logger

T = TypeVar("T")

logger = get_logger("akadze.job")


def run_through(runner: asyncio.Runner, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on the runner's loop, and return what it returns.

    Those two exceptions leave a loop from whatever task raises them, though the one who awaits that task gets them,
    too. A body that starts tasks is not to end what runs it.
    """
    loop = runner.get_loop()
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            logger.error("a task that a body has started raised %s: all else goes on", type(error).__name__)
