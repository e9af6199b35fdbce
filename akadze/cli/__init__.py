"""The command ``akadze``: one file per noun, and what the nouns share."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process, and end the process."""
    if sys.argv[1:2] == ["worker"]:
        # Before the imports, which take longer than all else at the start. Nothing is there to wind up until it serves.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit)
    from akadze.cli.commands import run

    run()


def _exit(_number: int, _frame: object) -> None:
    # Not SystemExit: raised in the middle of an import it may be swallowed, or leave a traceback.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, RuntimeError, ValueError):  # there is none, or it cannot be written to now
            pass
    os._exit(0)
