"""Contract, section 13: migrate is safe to run from many places at once, and to be killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import akadze
from akadze.sync import applied_versions, migrate
from tests.waiting import wait_until

SCRIPT = """
import os, sys
from akadze.sync import migrate
print("ready", flush=True)
for line in sys.stdin:
    count, url = line.split()
    children = []
    for _ in range(int(count)):
        child = os.fork()
        if child == 0:
            try:
                migrate(url)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    print(*children, flush=True)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(*ends, flush=True)
"""


class Processes:
    """Starts processes that migrate at once: children of one that has imported everything."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as stderr:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        assert self._words() == ["ready"]

    def start(self, count: int, url: str) -> list[int]:
        """Return the ids of the processes."""
        assert self._parent.stdin is not None
        self._parent.stdin.write(f"{count} {url}\n")
        self._parent.stdin.flush()
        return [int(word) for word in self._words()]

    def ends(self) -> list[int]:
        """Wait for those that were started, and return their exit codes."""
        return [int(word) for word in self._words()]

    @property
    def stderr(self) -> str:
        return self._errors.read_text()

    def _words(self) -> list[str]:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().split()

    def close(self) -> None:
        self._parent.kill()
        self._parent.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "stderr")
    yield processes
    processes.close()


def ask(url: str, question: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question)  # type: ignore[arg-type]  # a test's own text
        return cursor.fetchall() if cursor.description else []


def with_default_isolation(url: str, isolation: str) -> str:
    setting = "-c default_transaction_isolation=" + isolation.replace(" ", "\\ ")
    return f"{url}{'&' if '?' in url else '?'}options={quote(setting)}"


@pytest.fixture
def versions(database_url: str) -> list[str]:
    """What a database has whose migration nobody disturbed."""
    return applied_versions(database_url)


def test_processes_migrate_an_empty_database_and_one_that_is_up_to_date(
    empty_database_url: str, processes: Processes, versions: list[str]
) -> None:
    for round_ in range(6):
        processes.start(10, empty_database_url)
        assert processes.ends() == [0] * 10
        assert applied_versions(empty_database_url) == versions
        if round_ % 2:
            ask(empty_database_url, "drop schema akadze cascade")
    assert processes.stderr == ""


def test_threads_and_tasks_migrate_at_once(empty_database_url: str, versions: list[str]) -> None:
    async def tasks() -> None:
        await asyncio.gather(*(akadze.migrate(empty_database_url) for _ in range(5)))

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(migrate, empty_database_url) for _ in range(7)]
            others.append(pool.submit(asyncio.run, tasks()))
            assert [other.result(timeout=120) for other in others] == [None] * 8
        assert applied_versions(empty_database_url) == versions
        ask(empty_database_url, "drop schema akadze cascade")


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_migrate_waits_for_another_one_and_goes_on_from_where_that_ended(
    end: str, isolation: str, empty_database_url: str, versions: list[str]
) -> None:
    """Whatever the isolation is to which the role or the database defaults."""
    waiting = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    lock = "select pg_advisory_xact_lock(hashtextextended('akadze.migrate', 0))"
    with psycopg.connect(empty_database_url) as first, ThreadPoolExecutor(1) as pool:
        first.execute(lock)
        first.execute("create schema akadze")
        second = pool.submit(migrate, with_default_isolation(empty_database_url, isolation))
        wait_until(lambda: ask(empty_database_url, waiting))
        assert not second.done()
        first.commit() if end == "commit" else first.rollback()
        assert second.result(timeout=60) is None
    assert applied_versions(empty_database_url) == versions


def test_a_migrate_that_is_killed_at_any_moment_can_be_run_again(
    empty_database_url: str, processes: Processes, versions: list[str]
) -> None:
    chance = random.Random(126)
    ends = []
    for _ in range(30):
        [process] = processes.start(1, empty_database_url)
        time.sleep(chance.uniform(0.0, 0.05))  # any moment of its work is the point
        with suppress(ProcessLookupError):  # it was quicker
            os.kill(process, signal.SIGKILL)
        ends += processes.ends()
        if chance.random() < 0.5:
            ask(empty_database_url, "drop schema if exists akadze cascade")
    assert set(ends) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in ends
    migrate(empty_database_url)
    assert applied_versions(empty_database_url) == versions
    assert processes.stderr == ""


def test_a_migrate_whose_connection_dies_leaves_a_step_whole_or_not_at_all(
    empty_database_url: str, versions: list[str]
) -> None:
    """The server ends the session while the step waits for a lock in its middle."""
    holding = "select pg_advisory_xact_lock(hashtextextended('akadze.migrate', 0))"
    blocked = (
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid() and wait_event_type = 'Lock'"
    )
    with psycopg.connect(empty_database_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(holding)
        attempt = pool.submit(migrate, empty_database_url)
        wait_until(lambda: ask(empty_database_url, blocked))
        with pytest.raises(psycopg.OperationalError):
            attempt.result(timeout=60)
    assert applied_versions(empty_database_url) == []
    migrate(empty_database_url)
    assert applied_versions(empty_database_url) == versions
