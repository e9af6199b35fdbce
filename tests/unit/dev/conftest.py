"""The fixtures of the tests of the embedded PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from akadze import _embedded, dev
from tests.unit.dev.servers import Parent


@pytest.fixture(scope="module")
def running() -> Iterator[dev.Server]:
    """A server for the tests that leave it as it was."""
    with dev.start() as server:
        yield server


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A folder that every user of the machine may enter; pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="akadze-test-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def no_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(_embedded, "_SYSTEM", tmp_path / "no-system")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("AKADZE_PG_BIN", raising=False)


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    started: list[Parent] = []
    yield started
    for parent in started:
        parent.process.kill()
        parent.process.communicate()
        if (parent.directory / "data" / "postmaster.pid").exists():  # kept, or the test failed
            with suppress(ProcessLookupError):
                os.kill(parent.server, signal.SIGKILL)
        shutil.rmtree(parent.directory, ignore_errors=True)
