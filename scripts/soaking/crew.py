"""The processes of a soak: workers that are started again when they end, and producers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from soaking import log

TTL = 5.0
_OPTIONS = (
    "--queue", "default", "--queue", "side", "--heartbeat-interval", "0.5", "--heartbeat-ttl", str(TTL),
    "--poll-interval", "0.5", "--shutdown-timeout", "2",
)  # fmt: skip
_SCRIPTS = Path(__file__).parent.parent
#: What a worker may say when it ends by itself.
_LEASE = "no heartbeat of this worker succeeded within"
_AWAY = (
    "OperationalError",
    "connection failed",
    "connection refused",
    "out of reach",
    "the database system is",
    "server closed",
)


class Member:
    """A process that is kept running, as one pid after another."""

    def __init__(self, name: str, command: list[str], url: str, directory: Path) -> None:
        self.name = name
        self._command = command
        self._url = url
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._wanted = True
        #: Whoever changes what the process does holds this.
        self.busy = asyncio.Lock()
        self.expected = False

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        self._spawn()
        self._keeping = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    def _spawn(self) -> None:
        self.expected = False
        output = self._directory / f"{self.name}.log"
        environment = {
            **os.environ,
            "AKADZE_DATABASE_URL": self._url,
            "PYTHONPATH": os.pathsep.join([str(_SCRIPTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            log.VARIABLE: str(self._directory),
        }
        with output.open("ab") as file:
            self._seen = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        log.write("spawned", name=self.name, process=self._process.pid)

    async def _keep(self) -> None:
        assert self._process is not None
        while self._wanted:
            if self._process.poll() is not None:
                self._note_end()
                await asyncio.sleep(0.3)
                if self._wanted:
                    self._spawn()
            await asyncio.sleep(0.05)

    def _note_end(self) -> None:
        assert self._process is not None
        said = (self._directory / f"{self.name}.log").read_bytes()[self._seen :].decode(errors="replace")
        code = self._process.returncode
        why = "asked" if self.expected or code == -signal.SIGKILL else "lease" if _LEASE in said else "unknown"
        if why == "unknown" and any(text in said for text in _AWAY):
            why = "away"  # the database was, at its start or at its last write
        log.write("exited", name=self.name, process=self._process.pid, code=code, why=why, said=said[-1500:])

    def send(self, number: signal.Signals) -> int | None:
        """Send a signal, and tell to which pid."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)
        return pid

    async def ended(self, pid: int, *, within: float) -> bool:
        """Wait until a pid of this member has ended."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            if self.pid != pid:
                return True
            await asyncio.sleep(0.02)
        return False

    async def stop(self, *, within: float) -> None:
        """End it for good; kill it if it does not end in time, which the log tells."""
        self._wanted = False
        self.expected = True
        pid = self.send(signal.SIGTERM)
        if pid is not None and not await self.ended(pid, within=within):
            log.write("hung", name=self.name, process=pid)
        self.kill()
        if self._keeping is not None:
            await self._keeping
        if self._process is not None and pid is not None:
            self._note_end()

    def kill(self) -> None:
        """Leave nothing of it behind."""
        self._wanted = False
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def worker(name: str, url: str, directory: Path, *options: str) -> Member:
    return Member(name, ["akadze", "worker", "soaking.work:app", *_OPTIONS, *options], url, directory)


def producer(colour: str, url: str, directory: Path, seed: int) -> Member:
    return Member(f"producer-{colour}", ["soaking.producer", colour, str(seed)], url, directory)
