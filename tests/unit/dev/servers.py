"""What the tests of the embedded PostgreSQL share: a look at a server, its programs, and parents of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest

from akadze import _embedded, dev


def value(server: dev.Server, statement: str) -> Any:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute(statement).fetchone()
        assert row is not None
        return row[0]


def copy_wheel(to: Path) -> Path:
    """Copy the embedded programs, with the libraries beside their package, and return the bin folder of the copy."""
    package = next((folder for folder in _embedded._wheel_folders() if folder.exists()), None)
    if package is None:
        pytest.skip("the extra akadze[embedded] is not installed")
    package = package.parent.parent
    shutil.copytree(package / "pginstall", to / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return to / package.name / "pginstall" / "bin"


def make_programs(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for program in ("initdb", "postgres", "pg_ctl"):
        (folder / program).touch(mode=0o755)
    return folder


class Parent:
    """A Python process that starts a server with `script` and then waits, in a session of its own."""

    def __init__(self, script: str) -> None:
        ready = "\nprint(server.pid, server.directory, server.url(), flush=True)\nsys.stdin.read()\n"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", "import sys\nfrom akadze import dev\n" + dedent(script) + ready],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line, self.process.communicate()
        self.server, self.directory, self.url = int(line[0]), Path(line[1]), line[2]

    def leave(self) -> str:
        """Let it come to the end of its script, and return what it wrote to stderr."""
        return self.process.communicate()[1]
