"""Waiting for something to come true, with a deadline instead of a guessed pause."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

if True:  # ASYNC
    import anyio

    pause = anyio.sleep
else:
    pause = time.sleep


#: In seconds. Long, since a machine may be slow and busy; only a test that fails waits for its end.
PATIENCE = 60.0


async def until(predicate: Callable[[], Any], *, timeout: float = PATIENCE) -> Any:
    """Return the first true value of the predicate, which is asked again and again; fail after timeout seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if True:  # ASYNC
            value = await value if inspect.isawaitable(value) else value
        if value:
            return value
        assert time.monotonic() < deadline, f"after {timeout} s still {value!r}: {_source(predicate)}"
        await pause(0.01)


def _source(predicate: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(predicate).strip()
    except (OSError, TypeError):
        return repr(predicate)
