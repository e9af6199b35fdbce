"""Real `akadze worker` processes for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import dedent

import pytest

from tests.forked import Forked, can_be_forked
from tests.waiting import PATIENCE, wait_until

COMMAND = Path(sysconfig.get_path("scripts")) / "akadze"


def is_alive(pid: int) -> bool:
    """Tell whether a process runs. One that has ended but was not waited for by its parent does not."""
    try:
        with suppress(PermissionError):
            os.kill(pid, 0)
        if sys.platform != "linux":
            return True
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


class Process:
    """An `akadze` command, or another program, that runs until it ends, or until the end of the test.

    Its output goes to files. `anew`: start a new interpreter even where a fork would do.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        directory: Path,
        name: str,
        environment: Mapping[str, str],
        program: Path | None = None,
        anew: bool = True,
    ) -> None:
        self._stdout = directory / f"{name}.stdout"
        self._stderr = directory / f"{name}.stderr"
        self._process: subprocess.Popen[bytes] | Forked
        if not anew and can_be_forked(environment):
            for path in (self._stdout, self._stderr):
                path.touch()
            self._process = Forked(
                arguments,
                directory=directory,
                stdout=self._stdout,
                stderr=self._stderr,
                environment={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            )
            return
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [program or COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=directory,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,  # so that its children can be ended with it
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill this process only; a supervised child of it goes on."""
        self._process.kill()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return the exit code once the process has ended; fail, with its log, when it does not."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the process still runs after {timeout} s; its stderr:\n{self.stderr}")

    def wait_for_output(self, text: str, *, timeout: float = PATIENCE) -> None:
        """Wait until the text is in stdout or stderr; fail at once when the process ends without it."""

        def printed() -> bool:
            ended = self.returncode is not None
            found = text in self.stdout or text in self.stderr
            assert found or not ended, f"ended with {self.returncode} without {text!r}; its stderr:\n{self.stderr}"
            return found

        wait_until(printed, timeout=timeout)

    def end(self) -> None:
        """Kill the process and its children, and show its log with a failing test."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # one that was forked just now has no group of its own yet
        self._process.wait()
        print(f"--- stdout of {self.pid}\n{self.stdout}--- stderr of {self.pid}, exit {self.returncode}\n{self.stderr}")


class Starter:
    """Starts `akadze worker` for an app whose module is given as text, forked (`tests.forked`) unless `anew` is set."""

    def __init__(self, directory: Path, database_url: str, *, anew: bool = False) -> None:
        self._directory = directory
        self.anew = anew
        self._database_url = database_url
        self._started: list[Process] = []

    def __call__(
        self, source: str, *options: str, app: str = "app", environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start a worker of the app in `source`, a module that finds its database in AKADZE_DATABASE_URL.

        The module is written to the test's `tmp_path`, which is also the folder the worker runs in.
        """
        number = len(self._started) + 1
        (self._directory / f"worker{number}.py").write_text(dedent(source))
        return self._start(["worker", f"worker{number}:{app}", *options], environment, anew=self.anew)

    def program(self, source: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start a Python program given as text, which finds its database in AKADZE_DATABASE_URL."""
        return self._start(["-c", dedent(source), *arguments], environment, Path(sys.executable))

    def command(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start any `akadze` command."""
        return self._start(list(arguments), environment)

    def _start(
        self,
        arguments: list[str],
        environment: Mapping[str, str] | None,
        program: Path | None = None,
        *,
        anew: bool = True,
    ) -> Process:
        process = Process(
            arguments,
            directory=self._directory,
            name=f"process{len(self._started) + 1}",
            environment={"AKADZE_DATABASE_URL": self._database_url, **(environment or {})},
            program=program,
            anew=anew,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        with ExitStack() as stack:  # each of them, whatever becomes of the others
            for process in self._started:
                stack.callback(process.end)


@pytest.fixture
def start_worker(tmp_path: Path, database_url: str) -> Iterator[Starter]:
    """Start worker processes on the test's database: `start_worker(source, *options)`. They end with the test."""
    starter = Starter(tmp_path, database_url)
    yield starter
    starter.end()
