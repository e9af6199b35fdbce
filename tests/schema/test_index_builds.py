"""Contract, section 13: index builds on big tables do not block writers, and one that was interrupted is done again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import akadze
from akadze import AkadzeError
from akadze._async import index_builds as async_builds
from akadze._async import schema as async_schema
from akadze._connections import sync_caller
from akadze._statement import Statement
from akadze._sync import index_builds as sync_builds
from akadze._sync import schema as sync_schema
from akadze.sync import applied_versions
from tests.waiting import wait_until

BESIDE = """\
-- A comment; it is not a statement.
drop index concurrently if exists akadze.jobs_of_a_test;
create index concurrently jobs_of_a_test on akadze.jobs (task, created_at);
"""
IN_THE_WAY = "create index jobs_of_a_test on akadze.jobs (task, created_at);\n"
AFTER = "create table akadze.after_the_build (id integer);\n"

WAITING = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
INDEX = "select indexrelid, indisvalid from pg_index where indexrelid = to_regclass('akadze.jobs_of_a_test')"
INSERT = "insert into akadze.jobs (task) values ('written')"

Migrate = Callable[[str], None]


def ask(url: str, question: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question)  # type: ignore[arg-type]  # a test's own text
        return cursor.fetchall() if cursor.description else []


def valid(url: str) -> list[bool]:
    return [valid for _, valid in ask(url, INDEX)]


@pytest.fixture(params=["async", "sync"])
def migrate(request: pytest.FixtureRequest) -> Migrate:
    """`migrate` of either colour, for threads."""
    if request.param == "sync":
        return akadze.sync.migrate
    return lambda url: asyncio.run(akadze.migrate(url))


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the migrations, with those that are there already."""
    folder = shutil.copytree(str(sync_schema._STEPS), tmp_path / "steps")
    for module in (async_schema, sync_schema):
        monkeypatch.setattr(module, "_STEPS", folder)
    return folder


@pytest.fixture
def url(empty_database_url: str, steps: Path) -> str:
    """A database of the release before, and a new release with an index and what comes after it."""
    akadze.sync.migrate(empty_database_url)
    (steps / "9001_index.sql").write_text(BESIDE)
    (steps / "9002_after.sql").write_text(AFTER)
    return empty_database_url


def write_while_a_build_waits(url: str, migrate: Migrate) -> None:
    """Have a migrate in the middle of its build, kept there by a transaction that has written, and write beside it."""
    with psycopg.connect(url) as before, ThreadPoolExecutor(1) as pool:
        before.execute(INSERT)
        build = pool.submit(migrate, url)
        wait_until(lambda: ask(url, WAITING))
        try:
            with psycopg.connect(url, autocommit=True) as beside:
                beside.execute("set lock_timeout = '200ms'")
                beside.execute(INSERT)
            assert not build.done()
        finally:
            before.commit()
            build.result(timeout=60)


def test_jobs_are_written_while_an_index_is_built(url: str, migrate: Migrate) -> None:
    write_while_a_build_waits(url, migrate)
    assert valid(url) == [True]
    assert applied_versions(url)[-2:] == ["9001_index", "9002_after"]
    assert ask(url, "select count(*) from akadze.jobs") == [(2,)]


def test_an_index_in_a_transaction_would_keep_them_waiting(url: str, steps: Path, migrate: Migrate) -> None:
    """What the tests here can tell apart."""
    (steps / "9001_index.sql").write_text(IN_THE_WAY)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        write_while_a_build_waits(url, migrate)


def test_a_build_that_was_interrupted_is_done_again(url: str, migrate: Migrate) -> None:
    with psycopg.connect(url) as before, ThreadPoolExecutor(1) as pool:
        before.execute(INSERT)
        build = pool.submit(migrate, url)
        [(session,)] = wait_until(lambda: ask(url, WAITING))
        ask(url, f"select pg_terminate_backend({session})")
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            build.result(timeout=60)
        before.commit()
    [(broken, is_valid)] = ask(url, INDEX)
    assert not is_valid
    assert "9001_index" not in applied_versions(url)
    assert "9002_after" not in applied_versions(url)

    migrate(url)
    [(built, is_valid)] = ask(url, INDEX)
    assert is_valid
    assert built != broken
    assert applied_versions(url)[-2:] == ["9001_index", "9002_after"]


def test_many_migrate_at_once_and_one_of_them_builds(empty_database_url: str, steps: Path) -> None:
    (steps / "9001_index.sql").write_text(BESIDE)
    (steps / "9002_after.sql").write_text(AFTER)

    async def tasks() -> None:
        await asyncio.gather(*(akadze.migrate(empty_database_url) for _ in range(4)))

    for _ in range(3):
        with ThreadPoolExecutor(5) as pool:
            others = [pool.submit(akadze.sync.migrate, empty_database_url) for _ in range(4)]
            others.append(pool.submit(asyncio.run, tasks()))
            assert [other.result(timeout=120) for other in others] == [None] * 5
        assert valid(empty_database_url) == [True]
        assert len(applied_versions(empty_database_url)) == len(list(steps.glob("*.sql")))
        ask(empty_database_url, "drop schema akadze cascade")


def test_what_is_built_is_not_built_again(url: str, migrate: Migrate) -> None:
    migrate(url)
    before = ask(url, INDEX)
    migrate(url)
    assert ask(url, INDEX) == before


def test_one_that_waits_while_another_builds_does_not_build_again(url: str, migrate: Migrate) -> None:
    """And does not keep it from building: neither waits for the other with a snapshot."""
    with psycopg.connect(url) as before, ThreadPoolExecutor(2) as pool:
        before.execute(INSERT)
        first = pool.submit(migrate, url)
        wait_until(lambda: ask(url, WAITING))
        found = ask(url, INDEX)
        second = pool.submit(migrate, url)
        wait_until(lambda: ask(url, "select pid from pg_stat_activity where wait_event = 'PgSleep'"))
        before.commit()
        assert (first.result(timeout=60), second.result(timeout=60)) == (None, None)
    assert ask(url, INDEX) == [(found[0][0], True)]


def test_one_that_has_waited_for_its_turn_gives_up(url: str, migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (async_builds, sync_builds):
        assert module._PAUSES * 0.2 == 30
        monkeypatch.setattr(module, "_PAUSES", 2)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("select pg_advisory_lock(hashtextextended('akadze.migrate.indexes', 0))")
        with pytest.raises(AkadzeError, match="another migrate is building indexes"):
            migrate(url)
    assert valid(url) == []
    migrate(url)
    assert valid(url) == [True]


def test_a_build_gives_up_when_a_lock_is_not_to_be_had_in_time(
    url: str, migrate: Migrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = async_builds._LIMIT_BUILDING.sql
    assert "'lock_timeout', '30s'" in limit
    for module in (async_builds, sync_builds):
        monkeypatch.setattr(module, "_LIMIT_BUILDING", Statement("limit", limit.replace("30s", "100ms")))
    # If it waited longer, the server would end the one who holds the lock, and it would get it.
    with psycopg.connect(url, options="-c idle_in_transaction_session_timeout=60s") as other:
        other.execute(INSERT)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            migrate(url)
    migrate(url)
    assert valid(url) == [True]


@pytest.mark.parametrize("fails", [False, True])
def test_the_session_gets_its_timeouts_back(fails: bool, url: str, steps: Path) -> None:
    """A connection of Django lives on."""
    if fails:
        (steps / "9001_index.sql").write_text(BESIDE.replace("(task,", "(tusk,"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set lock_timeout = '7s'")
        connection.execute("set statement_timeout = '8s'")
        if fails:
            with pytest.raises(psycopg.errors.UndefinedColumn):
                sync_schema.apply_pending(sync_caller(connection))
        else:
            sync_schema.apply_pending(sync_caller(connection))
        row = connection.execute(
            "select current_setting('lock_timeout'), current_setting('statement_timeout'),"
            " (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())"
        ).fetchone()
    assert row == ("7s", "8s", 0)
    assert valid(url) == ([] if fails else [True])


def test_a_build_in_a_transaction_is_refused_and_what_the_transaction_wrote_stays(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(INSERT)
        with pytest.raises(AkadzeError, match="migrate outside of one"):
            sync_schema.apply_pending(sync_caller(connection))
    assert valid(url) == []
    assert ask(url, "select count(*) from akadze.jobs") == [(1,)]
