"""Django's tests run in processes of their own, by `manage.py test`: Django's state is global, and there for good."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.database import drop_database

PROJECT = Path(__file__).parent / "project"


class Manage:
    """Runs `manage.py` of a project, with its database on the server of the tests."""

    def __init__(self, server_url: str, database: str) -> None:
        self.environment = {
            **os.environ,
            "PYTHONWARNINGS": "error",
            "PYTHONUNBUFFERED": "1",
            "SHOP_SERVER_URL": server_url,
            "SHOP_DATABASE": database,
            "SHOP_TEST_DATABASE": database,
        }

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
    yield Manage(server_url, database_name)
    drop_database(server_url, database_name)
