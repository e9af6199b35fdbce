"""What all tests share: the database (`tests.database`), worker processes (`tests.processes`), and an app."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from akadze import Akadze

# Where this is set, each process that a test starts compiles every module anew, which takes two seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a shell starts in the background ignores Ctrl-C, and so would each process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.database", "tests.processes", "pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run all tests marked as heavy, and in full, not in short forms"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "heavy(minutes, short): takes long, or much of the machine, and has a short form unless short=False: --full",
    )


@pytest.hookimpl(trylast=True)  # once -m has taken the others away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full") and not any("::" in argument for argument in config.args):
        # Without a short form of their own; what is asked for by name is run.
        left_out = [item for item in items if _is_for_full_runs(item)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not _is_for_full_runs(item)]
    if config.getoption("--full"):
        # Each process of xdist is given a part of the list, and takes from those of others once it has done its own. So
        # each part begins with its longest. The one that comes second cannot be taken: it waits, and is the shortest.
        items.sort(key=_minutes, reverse=True)
        count = getattr(config, "workerinput", {}).get("workercount", 1)
        parts = [items[first::count] for first in range(count)]
        items[:] = [item for part in parts for item in (*part[:1], *part[:0:-1][:1], *part[1:-1])]


def _is_for_full_runs(item: pytest.Item) -> bool:
    return any(mark.kwargs.get("short") is False for mark in item.iter_markers("heavy"))


def _minutes(item: pytest.Item) -> float:
    return max((mark.kwargs.get("minutes", 0) for mark in item.iter_markers("heavy")), default=0)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    # Half of the time a test waits for something; each process has a server of its own.
    return min(2 * (os.cpu_count() or 1), 4)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Tell whether heavy tests are to run in full."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


# It takes anyio_backend so that tests without a loop can have it, too: the app is closed on a loop in either case.
@pytest.fixture
async def app(anyio_backend: str, database_url: str) -> AsyncIterator[Akadze]:
    app = Akadze(database_url=database_url)
    yield app
    await app.aclose()
