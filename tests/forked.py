"""An `akadze` process that is forked from one which has imported all it needs.

It is a process like any other, but a start takes a tenth of a second of the machine instead of one. What is tested of
the start itself (`tests/cli`) starts a new interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: What an `akadze worker` has imported when it serves.
_IMPORTED = [
    "akadze.cli.commands",
    "akadze.cli.worker",
    "akadze.worker",
    "akadze.sync",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.orm",
]

#: Variables that an interpreter reads when it starts, or its libraries do.
_AT_START = ("PYTHON", "LD_", "FAKE", "LANG", "LC_", "MALLOC", "TZ", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")


def can_be_forked(environment: Mapping[str, str]) -> bool:
    """Tell whether a process with these additional variables need not start from nothing."""
    names = set(environment) - {"PYTHONPATH"}
    return sys.platform == "linux" and not any(name.startswith(_AT_START) for name in names)


class Forked:
    """Such a process, with those methods of Popen that tests need."""

    def __init__(
        self, arguments: list[str], *, directory: Path, stdout: Path, stderr: Path, environment: Mapping[str, str]
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self._process = context.Process(
            target=_run, args=(arguments, str(directory), str(stdout), str(stderr), dict(environment))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("akadze", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _run(arguments: list[str], directory: str, stdout: str, stderr: str, environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, stdout), (2, stderr)):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr] # it is the usual one
    sys.argv = ["akadze", *arguments]
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))

    from akadze.cli import main

    main()
