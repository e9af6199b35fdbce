"""The command ``akadze``: one file per noun, and what the nouns share."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process, and end the process."""
    # Before the imports, which take longest at the start. There is nothing to wind up before a command runs
    # or a worker serves.
    if _command(sys.argv[1:]) == "worker":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit)
        from akadze.cli.commands import run
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_interrupted)
        from akadze.cli.commands import run

        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        from akadze.cli.commands import run

    run()


def _command(arguments: list[str]) -> str | None:
    """The command that is named, also behind the option that may stand before it."""
    if arguments[:1] == ["--database-url"]:
        arguments = arguments[2:]
    elif arguments and arguments[0].startswith("--database-url="):
        arguments = arguments[1:]
    return arguments[0] if arguments else None


def _exit(_number: int, _frame: object) -> None:
    _end(0)


def _exit_interrupted(_number: int, _frame: object) -> None:
    _end(130)


def _end(code: int) -> None:
    # Not SystemExit: raised in the middle of an import it may be swallowed, or leave a traceback.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, RuntimeError, ValueError):  # there is none, or it cannot be written to now
            pass
    os._exit(code)
