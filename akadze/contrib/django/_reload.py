"""A worker that starts again when code changes, for development."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Final

from django.utils import autoreload

from akadze.worker import Worker

#: Seconds that the jobs of the old code have to end, or to be handed back.
_TO_STOP: Final = 5.0


def serve_and_reload(make: Callable[[], Worker]) -> None:
    """Serve in a thread beside Django's autoreloader, and stop in order before it starts the new code."""
    serving = _Serving(make)
    try:
        autoreload.run_with_reloader(serving.run)
    finally:
        # The process that the reloader starts; the one that starts it serves nothing.
        if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
            serving.stop()


class _Serving:
    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._stop: Callable[[], object] | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        stop, loop, worker = asyncio.Event(), asyncio.get_running_loop(), self._make()

        def stop_now() -> None:
            stop.set()
            worker.hurry()

        self._stop = lambda: loop.call_soon_threadsafe(stop_now)
        try:
            await worker.serve(stop)
        finally:
            await worker.app.aclose()

    def stop(self) -> None:
        if self._stop is not None and not self._ended.is_set():
            self._stop()
            self._ended.wait(_TO_STOP)
