"""The log of a worker process: lines on stderr, unless the app sets up logging itself."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Final

from akadze.cli.output import silence

LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def prepare_logs() -> logging.Handler:
    """Give what is logged while the app is imported its form, without keeping the app from its own set-up."""
    handler = _Lines()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.lastResort = handler
    return handler


def settle_logs(handler: logging.Handler, level: str | None) -> None:
    """Log to the handler if the app, which is imported now, has not set up the root logger.

    ``level`` is then the level of all loggers, else of akadze's own.
    """
    root = logging.getLogger()
    number = logging.getLevelNamesMapping()[(level or "info").upper()]
    if not root.handlers:
        handler.setLevel(logging.NOTSET)
        root.addHandler(handler)
        root.setLevel(number)
    elif level is not None:
        logging.getLogger("akadze").setLevel(number)


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002 - logging's name and signature
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Writes to stderr as long as somebody reads it. A worker goes on without its log."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_shown(record):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        if _same_file(1, 2):
            silence(sys.stdout)
        silence(sys.stderr)


def _is_shown(record: logging.LogRecord) -> bool:
    """Tell whether a logger below the root writes the record by a handler of its own, as Django's do in development."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        for handler in logger.handlers:
            stream = getattr(handler, "stream", None)
            if (
                stream in (sys.stderr, sys.stdout)
                and record.levelno >= handler.level
                and _lets_through(handler, record)
            ):
                return True
        logger = logger.parent
    return False


def _lets_through(handler: logging.Handler, record: logging.LogRecord) -> bool:
    # Django's filters may be asked once more. Others may count what they are asked.
    return all(type(each).__module__ == "django.utils.log" for each in handler.filters) and bool(handler.filter(record))


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False
