"""Threads for task bodies that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

_Work = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class BodyThreads:
    """Runs callables in threads that are kept for the next one.

    There is always a thread for a callable: as many at once as there are runs, so a body that outlives its run takes
    no other's place. The threads are daemons: a body that does not end cannot hold up the exit of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._busy: dict[SimpleQueue[_Work | None], Any] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._closed = False

    def run(self, body: Callable[[], Any], owner: Any) -> asyncio.Future[Any]:
        """Start ``body`` in a thread, with a copy of the current context; the future has what it returns or raises.

        Cancelling the future does not stop the thread: ``owner`` stays among ``busy`` until the body ends.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = copy_context()
        work = (lambda: context.run(body), loop, future)
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
            if inbox is None:
                self._count += 1
                number = self._count
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=f"{self._name}-{number}", daemon=True).start()
        self._busy[inbox] = owner  # the loop's thread alone adds to it
        inbox.put(work)
        return future

    @property
    def busy(self) -> list[Any]:
        """The owners of the bodies that have not ended, their runs ended or not."""
        with self._lock:
            return [*self._busy.values()]

    def close(self) -> None:
        """Let the idle threads end, and each of the others when its body ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: SimpleQueue[_Work | None]) -> None:
        while (work := inbox.get()) is not None:
            body, loop, future = work
            result: Any = None
            error: BaseException | None = None
            try:
                result = body()
            except BaseException as caught:
                error = caught
            with self._lock:
                closed = self._closed
                self._busy.pop(inbox, None)
                if not closed:
                    self._idle.append(inbox)
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits for this body any more
            del work, body, future, result, error
            if closed:
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        # A future refuses StopIteration, and SystemExit would end the loop: the one who waits unwraps it.
        future.set_result(BodyError(error))


class BodyError:
    """What a body raised, carried as a value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
