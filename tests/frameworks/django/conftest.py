"""Django's tests run in processes of their own, by `manage.py test`: Django's state is global, and there for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.database import drop_database, skip_where_django_refuses
from tests.waiting import wait_until

PROJECT = Path(__file__).parent / "project"


class Started:
    """A command of `manage.py` that goes on."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Wait until the text has been printed so often; fail at once when the command ends without it."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            found = self.log.count(text) >= times
            assert found or not ended, f"ended with {self.process.returncode} without {text!r}:\n{self.log}"
            return found

        wait_until(printed)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        print(f"--- {self.process.args!r}, exit {self.process.returncode}\n{self.log}")


class Manage:
    """Runs `manage.py` of a project, with its database on the server of the tests."""

    def __init__(self, server_url: str, database: str) -> None:
        skip_where_django_refuses(server_url)
        self._started: list[Started] = []
        self.environment = {
            **os.environ,
            "PYTHONWARNINGS": "error",
            "PYTHONUNBUFFERED": "1",
            "SHOP_SERVER_URL": server_url,
            "SHOP_DATABASE": database,
            "SHOP_TEST_DATABASE": database,
        }

    def start(self, *arguments: str, log: Path, project: Path = PROJECT, **environment: str) -> Started:
        """Start a command that goes on; its output goes to the log."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=project,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its children can be ended with it
            )
        self._started.append(Started(process, log))
        return self._started[-1]

    def end(self) -> None:
        for started in self._started:
            started.end()

    def __call__(
        self, *arguments: str, project: Path = PROJECT, code: int = 0, environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a command and return what it printed, both streams; fail with that if it ends with another code."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=project,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"ended with {done.returncode}:\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="session")
def database_name() -> str:
    """The name of the database that Django makes, one for each process that runs tests."""
    return f"django_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_test"


@pytest.fixture
def manage(server_url: str, database_name: str) -> Iterator[Manage]:
    manage = Manage(server_url, database_name)
    yield manage
    manage.end()
    drop_database(server_url, database_name)
