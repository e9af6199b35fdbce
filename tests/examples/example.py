"""An example of docs/examples, copied to a folder, with its commands as its README gives them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.markdown import ROOT, parse
from tests.processes import COMMAND, Process

_ADDRESS = re.compile(r"unning on (http://127\.0\.0\.1:\d+)")


class Example:
    """One example, on a database of its own. What it starts ends with the test."""

    def __init__(self, name: str, directory: Path, url: str) -> None:
        self.name = name
        self.directory = directory / name
        self.url = url
        self._started: list[Process] = []
        shutil.copytree(ROOT / "docs" / "examples" / name, self.directory, ignore=shutil.ignore_patterns("__pycache__"))

    @property
    def commands(self) -> list[str]:
        """The lines of the README's shell blocks."""
        page = f"docs/examples/{self.name}/README.md"
        blocks = parse(page, (ROOT / page).read_text("utf-8"))
        return [line for block in blocks for line in block.text.splitlines()]

    def run(self, command: str, *, database: bool = True) -> str:
        """Run one of the README's commands to its end, and return its output. It must be well."""
        assert command in self.commands
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self._environment(database=database),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}"
        return done.stdout

    def start(self, command: str, *options: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start one of the README's commands and leave it running."""
        assert command in self.commands
        program, *arguments = command.split()
        process = Process(
            [*arguments, *options],
            directory=self.directory,
            name=f"process{len(self._started)}",
            environment={**self._environment(), **(environment or {})},
            program=COMMAND.parent / program,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.end()

    def _environment(self, *, database: bool = True) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AKADZE_", "PYTEST_"))}
        path = f"{COMMAND.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "PATH": path, **({"AKADZE_DATABASE_URL": self.url} if database else {})}


def address_of(server: Process) -> str:
    """Wait until a web server says where it is."""
    server.wait_for_output("unning on http://127.0.0.1:")
    found = _ADDRESS.search(server.stdout + server.stderr)
    assert found is not None
    return found[1]
