"""Callables that an application adds to follow its jobs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from akadze._signature import is_async
from akadze.errors import AkadzeError, EnqueueError
from akadze.job import Job

__all__ = ["Hooks"]

Hook = Callable[..., Any]


class Hooks:
    """Lists of callables, sync or async, that ``app.hooks`` holds. Append to the lists.

    - ``on_enqueue(connection, job)`` runs in the enqueue transaction, for each job of ``enqueue_many`` too. An error
      there makes the enqueue raise it, without a row and with the caller's transaction usable.
    - ``before_run(job)`` runs before the task body, ``after_run(job)`` after it has returned, both inside its timeout.
      An error there counts as a failed run.
    - ``on_transition(connection, job, from_state, to_state)`` runs in the transaction that changes the job's state.
      It must not raise: an error rolls that job's transition back, and the job stays as it was.

    ``connection`` is the object that the transaction runs on: the caller's own session at enqueue, an SQLAlchemy
    connection in a worker.
    """

    def __init__(self) -> None:
        self.on_enqueue: list[Callable[[Any, Job], Awaitable[None] | None]] = []
        self.before_run: list[Callable[[Job], Awaitable[None] | None]] = []
        self.after_run: list[Callable[[Job], Awaitable[None] | None]] = []
        self.on_transition: list[Callable[[Any, Job, str, str], Awaitable[None] | None]] = []


def name_of(hook: Hook) -> str:
    return str(getattr(hook, "__qualname__", None) or type(hook).__qualname__)


def refuse_async(hooks: list[Any], moment: str) -> None:
    """Raise EnqueueError if one of the hooks cannot run where nothing can be awaited."""
    for hook in hooks:
        if is_async(hook):
            raise EnqueueError(
                f"the {moment} hook {name_of(hook)} is async, but this enqueue is blocking: make the hook a plain "
                "function, or enqueue on an async session"
            )


async def async_call_hook(hook: Hook, *arguments: Any) -> None:
    """Call a hook of either kind."""
    result = hook(*arguments)
    if inspect.isawaitable(result):
        await result


def sync_call_hook(hook: Hook, *arguments: Any) -> None:
    """Call a plain hook; one that turns out to be async is an AkadzeError."""
    result = hook(*arguments)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise AkadzeError(
            f"the hook {name_of(hook)} is async, but it was called from blocking code: make it a plain function"
        )
