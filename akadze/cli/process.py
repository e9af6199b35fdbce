"""A worker as the duty of the whole process: its loop, its signals, its end."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from akadze._log import get_logger
from akadze._loops import run_through
from akadze.cli.output import print_error, silence
from akadze.cli.signals import ignore_signals, watch_signals

if TYPE_CHECKING:
    from akadze.worker import Worker

logger = get_logger("akadze.cli")

#: Seconds that closing the app's engines may take.
_TO_CLOSE: Final = 2.0
#: Seconds that the end of the process may take: threads, exit handlers and other people's tasks included.
_TO_END: Final = 3.0
#: Seconds after those in which what is buffered may still be written.
_TO_FLUSH: Final = 1.0


def serve(worker: Worker, *, supervised: bool = False) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code: 0 after a clean stop, 1 after an error, which is told.

    The process has to end afterwards, and is ended if something holds it up. ``supervised``: by ``Supervisor``.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return run_through(runner, _serve(worker, supervised=supervised))


async def _serve(worker: Worker, *, supervised: bool) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    watch_signals(loop, stop.set, worker.hurry, supervised=supervised)
    code = 1
    try:
        await worker.serve(stop)
        code = 0
    except Exception as error:
        _tell(error)
    finally:
        ignore_signals(loop)
        _end_process_in_time(code)
    await _quietly(worker.app.aclose())
    await _quietly(_dispose(worker))
    return code


async def _dispose(worker: Worker) -> None:
    """Close an engine that was passed in, too: it is this process's alone. There is none where its URL was wrong."""
    await worker.app.engine.dispose()


async def _quietly(closing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(_TO_CLOSE):
            await closing
    except Exception as error:
        logger.debug("closing the engine failed: %s", type(error).__name__)


def _tell(error: Exception) -> None:
    """One line for what the database or the caller did; a traceback before it for what nobody expected."""
    import psycopg
    from sqlalchemy.exc import SQLAlchemyError

    from akadze._sqlstates import first_line
    from akadze.errors import AkadzeError

    expected = isinstance(error, AkadzeError | psycopg.Error | SQLAlchemyError | OSError)
    if not expected:
        logger.error("the worker failed", exc_info=error)
    print_error(first_line(error) if expected else f"{type(error).__name__}: {first_line(error)}")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop  # psycopg cannot work on the default one
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


def _end_process_in_time(code: int) -> None:
    """End the process even if a thread, a task that swallows its cancellation or an exit handler holds it up."""

    def end_orderly() -> None:
        waiting.wait(_TO_END)
        names = [thread.name for thread in threading.enumerate() if _holds_up(thread)]
        logger.warning("the process ends without waiting for %s", ", ".join(names) or "what holds it up")
        logging.shutdown()
        flush_streams()
        os._exit(code)

    def end() -> None:
        # Writing may hang as well: nobody reads the other end of a full pipe.
        waiting.wait(_TO_END + _TO_FLUSH)
        os._exit(code)

    waiting = threading.Event()
    for duty in (end_orderly, end):
        threading.Thread(target=duty, name="akadze-end", daemon=True).start()


def _holds_up(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()


def flush_streams() -> None:
    """Write what is buffered, and leave nothing that could fail when the interpreter writes it at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                silence(stream)
