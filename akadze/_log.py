"""Loggers of akadze's own: an application's handler that raises does not decide what becomes of a job or a worker."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["get_logger"]


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Logs as the logger itself does, and forgets what its filters and handlers raise.

    What they raise cannot be logged, and the standard library's own handlers tell of it on stderr instead.
    """

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **options: Any) -> None:
        try:
            # One level more, so that a record names the line that logs, not this one.
            super().log(level, msg, *args, stacklevel=stacklevel + 1, **options)
        except Exception:  # noqa: S110 - a full disk, or a handler's fault
            pass


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of this name, to be called from a worker, a run or an enqueue."""
    return _Quiet(logging.getLogger(name), None)
