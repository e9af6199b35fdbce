"""The workers of the demo: ordinary `akadze worker` processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from akadze.errors import AkadzeError

APP = "akadze.demo.shop:app"
#: What a person would type. The lease is short, so that a killed worker is missed within seconds.
COMMAND = ("akadze", "worker", APP, "--slots", "4", "--fair")
_LEASE = ("--heartbeat-interval", "0.5", "--heartbeat-ttl", "3")
_START = "from akadze.cli import main; main()"
_PATIENCE = 15.0


class Crew:
    """Starts worker processes on one database, and leaves none behind."""

    def __init__(self, database_url: str) -> None:
        self._environment = {**os.environ, "AKADZE_DATABASE_URL": database_url}
        self._folder = tempfile.TemporaryDirectory(prefix="akadze-demo-", ignore_cleanup_errors=True)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> int:
        """Start a worker and return its process id."""
        with (Path(self._folder.name) / f"log-{len(self._processes) + 1}").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-c", _START, *COMMAND[1:], *_LEASE],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # a terminal's Ctrl-C is for the demo, which stops its workers itself
            )
        self._processes[process.pid] = process
        return process.pid

    @property
    def alive(self) -> list[int]:
        """The process ids of the workers that run."""
        return [pid for pid, process in self._processes.items() if process.poll() is None]

    def check(self) -> None:
        """Raise AkadzeError, with the end of its log, if a worker ended by itself."""
        for number, process in enumerate(self._processes.values(), 1):
            if process.poll() not in (None, 0, -signal.SIGKILL):
                log = (Path(self._folder.name) / f"log-{number}").read_text(errors="replace")
                raise AkadzeError(f"worker {process.pid} ended with exit code {process.poll()}: {log[-2000:].strip()}")

    def kill(self, pid: int) -> None:
        """Kill a worker outright, as a crash of its machine would."""
        self._processes[pid].kill()
        self._processes[pid].wait()

    async def stop(self) -> dict[int, int]:
        """Ask the workers that run to stop, wait for them, and return their exit codes."""
        stopped = self.alive
        for pid in stopped:
            self._processes[pid].terminate()
        for pid in stopped:
            await asyncio.to_thread(self._processes[pid].wait, _PATIENCE)
        return {pid: self._processes[pid].returncode for pid in stopped}

    def end(self) -> None:
        """Kill what still runs, and remove the logs."""
        for pid in self.alive:
            self.kill(pid)
        self._folder.cleanup()
