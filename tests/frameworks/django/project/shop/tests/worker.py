"""Worker processes of this project, on the database of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from django.db import connection
from django.test import TransactionTestCase

from akadze.contrib.django.testing import empty_tables

PROJECT = Path(__file__).parents[2]


def wait_until(check: Callable[[], object], *, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError("it has not come true in time")
        time.sleep(0.02)


class Worker:
    """`manage.py akadze_worker`, ended by `end` at the latest."""

    def __init__(self, *options: str, **environment: str) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115 - closed by end
        command = [sys.executable, "manage.py", "akadze_worker", "--poll-interval", "50ms", *options]
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env={**os.environ, "SHOP_DATABASE": connection.settings_dict["NAME"], **environment},
        )

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Wait until it serves, ask it to stop, and return its exit code."""
        wait_until(lambda: "serves queues" in self.log or self._process.poll() is not None)
        self._process.send_signal(number)
        return self._process.wait(60)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class WorkerTestCase(TransactionTestCase):
    """Starts workers, and empties akadze's tables beside those of the models."""

    def start_worker(self, *options: str, **environment: str) -> Worker:
        worker = Worker(*options, **environment)
        self.addCleanup(worker.end)
        return worker

    def tearDown(self) -> None:
        self.doCleanups()
        empty_tables()
