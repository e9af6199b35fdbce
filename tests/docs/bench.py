"""Where blocks are run: a database, a folder, and the names that a set-up gives to a block."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text
from typer.testing import CliRunner

from akadze import Akadze
from akadze.cli import commands
from akadze.testing import drain
from tests.docs.markdown import Block
from tests.processes import COMMAND
from tests.waiting import until

#: Commands that fetch things or run these very tests; that they say this and nothing else is all that can be checked.
#: `akadze demo` is run by tests/test_demo.py.
NOT_RUN = (
    "pip install uv && uv run akadze demo",
    "uv run pytest",
    "pip install akadze",
    "akadze demo --keep",
)

#: Jobs that run, or could run within moments: those of a first retry too, not those planned for another day.
_SOON = "select 1 from akadze.jobs where state = 'running' or state = 'queued' and run_at < now() + interval '5 s'"


class Bench:
    """A database with akadze's schema, an app on it, and a folder."""

    def __init__(self, app: Akadze, url: str, directory: Path) -> None:
        self.app = app
        self.url = url
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "snippet", "app": app, "engine": app.engine}

    async def run(self, block: Block) -> None:
        """Run a block: Python as a module would be run, but with `await` allowed on its top level."""
        match block.language:
            case "sh":
                for line in block.text.splitlines():
                    await self.command(line)
            case "python":
                await self._run_python(block)
            case "sql":
                async with await psycopg.AsyncConnection.connect(self.url) as connection:
                    await connection.execute(block.text.encode())

    async def _run_python(self, block: Block) -> None:
        code = compile(
            "\n" * (block.line - 1) + block.text,
            block.page,
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        result = eval(code, self.names)
        if inspect.isawaitable(result):
            await result

    async def drain(self) -> None:
        await drain(self.app)

    async def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own and return the rows, if it has any."""
        async with self.app.engine.begin() as connection:
            result = await connection.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    async def ends(self) -> list[tuple[str, str]]:
        """The task and state of each job, in order of their ids."""
        return [(task, state) for task, state in await self.rows("select task, state from akadze.jobs order by id")]

    async def command(self, line: str) -> None:
        """Run one shell command in the folder; a worker is stopped, by Ctrl-C, once it has run what was ready."""
        line = line.strip()
        if not line or line.startswith(("#", "export AKADZE_DATABASE_URL=")) or line in NOT_RUN:
            return
        words = line.split()
        if words[:2] == ["akadze", "worker"]:
            await self._worker(words[2:])
            return
        if words[0] == "akadze":
            # In this process: the start of an interpreter takes longer than the command.
            done = CliRunner().invoke(commands.app, shlex.split(line)[1:], env={"AKADZE_DATABASE_URL": self.url})
            assert done.exit_code == 0, f"{line}: exit {done.exit_code}\n{done.output}"
            return
        assert words[0] == "python", f"nobody has said how to run this: {line}"
        process = await self._start("sh", "-c", line)
        output, _ = await process.communicate()
        assert process.returncode == 0, f"{line}: exit {process.returncode}\n{output.decode()}"

    async def _worker(self, options: list[str]) -> None:
        process = await self._start(str(COMMAND), "worker", *options)

        async def done() -> bool:
            registered = await self.rows("select 1 from akadze.workers where pid = :pid", pid=process.pid)
            left = await self.rows(_SOON)
            assert process.returncode is None, (await process.communicate())[0].decode()
            return bool(registered) and not left

        try:
            await until(done)
            process.send_signal(signal.SIGINT)
            output, _ = await process.communicate()
            assert process.returncode == 0, output.decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.directory,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    def _environment(self) -> dict[str, str]:
        folders = f"{COMMAND.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": folders, "AKADZE_DATABASE_URL": self.url}


__all__ = ["NOT_RUN", "Bench"]
