"""A project of a user, with an app and a database for its tests, in which pytest is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.database import create_database, drop_database

#: The module `shop` of the project. It finds its database late, as the plugin's pages say.
SHOP = """
import os
from akadze import Akadze, current
from akadze.sync import current as sync_current

app = Akadze(database_url=lambda: os.environ["AKADZE_DATABASE_URL"])
ran = []

@app.task("pack")
def pack(order: int, gift: bool = False) -> None:
    ran.append(order)

@app.task("send")
async def send(order: int) -> None:
    ran.append(order)

@app.task("fail", max_attempts=1)
def fail() -> None:
    raise ValueError("no")
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="session")
def project_database_url(server_url: str) -> Iterator[str]:
    """A database that no other test uses, and that is not migrated."""
    name = "akadze_plugin_test"
    yield create_database(server_url, name)
    drop_database(server_url, name)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, project_database_url: str) -> Run:
    """Run the text of a test file in the project: `run(text, *options, ini=..., without=..., apart=...)`.

    A warning is an error there. ``without`` is the plugin for async tests that is left out. Unless ``apart``, it runs
    in this process, which is faster.
    """
    monkeypatch.setenv("AKADZE_DATABASE_URL", project_database_url)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(shop=SHOP)

    def run(text: str, *options: str, ini: str = "", without: str = "asyncio", apart: bool = False) -> pytest.RunResult:
        pytester.makeini(f"[pytest]\nakadze_app = shop:app\npythonpath = .\nfilterwarnings = error\n{ini}\n")
        pytester.makepyfile(test_project=text)
        start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        return start("-p", "no:cacheprovider", "-p", f"no:{without}", *options)

    return run
