"""Contract, section 14: exit codes, and the one line that says what is wrong."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from akadze import __version__
from tests.cli.conftest import Cli, Result, Table
from tests.database import with_database

READING = [
    ("jobs", "list"),
    ("jobs", "show", "1"),
    ("queues", "list"),
    ("limits", "list"),
    ("workers", "list"),
    ("metrics",),  # the last: it has a format of its own
]
WRITING = [
    ("jobs", "requeue", "1"),
    ("jobs", "cancel", "1"),
    ("queues", "pause", "q"),
    ("queues", "resume", "q"),
    ("limits", "set", "k", "--max-running", "1"),
    ("limits", "clear", "k"),
]
MIGRATE = ("migrate",)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine that nobody listens on, held so that nobody else gets it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def one_line(text: str) -> str:
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text.removeprefix("error: ").rstrip()


@pytest.mark.parametrize("arguments", [*READING, *WRITING, MIGRATE, ("bench",)], ids=" ".join)
def test_a_missing_url_is_wrong_use(cli: Cli, arguments: tuple[str, ...]) -> None:
    for environment in ({}, {"AKADZE_DATABASE_URL": ""}):
        result = cli(*arguments, url=None, environment=environment)
        assert (result.code, result.stdout) == (2, "")
        assert one_line(result.stderr) == "no database is given: pass --database-url or set AKADZE_DATABASE_URL"


@pytest.mark.parametrize("arguments", [*READING, *WRITING, MIGRATE], ids=" ".join)
def test_a_server_that_is_away_is_a_failure_told_without_the_password(
    cli: Cli, closed_port: int, arguments: tuple[str, ...]
) -> None:
    result = cli(*arguments, url=f"postgresql://ada:secret@127.0.0.1:{closed_port}/app")
    assert (result.code, result.stdout) == (1, "")
    assert str(closed_port) in one_line(result.stderr)
    assert "secret" not in result.stderr


@pytest.mark.parametrize("arguments", [*READING, *WRITING], ids=" ".join)
def test_a_database_that_is_not_migrated_is_a_failure_that_says_what_to_run(
    cli: Cli, empty_database_url: str, arguments: tuple[str, ...]
) -> None:
    result = cli(*arguments, url=empty_database_url)
    assert (result.code, result.stdout) == (1, "")
    assert "akadze migrate" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://ada:secret@db/app", "begins with mysql://; give one that begins with postgresql://"),
        ("db", "has no scheme that akadze knows"),
        ("postgresql://ada:secret@db:port/app", "the port in the database URL is not a number"),
        ("postgresql://ada:secret@db/app?nosuch=1", "nosuch"),
    ],
)
@pytest.mark.parametrize("arguments", [("jobs", "list"), MIGRATE], ids=" ".join)
def test_a_malformed_url_is_wrong_use(cli: Cli, arguments: tuple[str, ...], url: str, said: str) -> None:
    result = cli(*arguments, url=url)
    assert (result.code, result.stdout) == (2, "")
    assert said in one_line(result.stderr)
    assert "secret" not in result.stderr


@pytest.mark.parametrize("command", ["demo", "bench"])
@pytest.mark.parametrize("by_option", [True, False], ids=["option", "variable"])
def test_demo_and_bench_tell_of_a_wrong_url_and_of_a_server_that_is_away_as_the_others_do(
    cli: Cli, closed_port: int, command: str, by_option: bool
) -> None:
    def run(url: str) -> Result:
        result = cli(command, "--database-url", url, url=None) if by_option else cli(command, url=url)
        assert "secret" not in result.stdout + result.stderr
        return result

    wrong, away = run("mysql://ada:secret@db/app"), run(f"postgresql://ada:secret@127.0.0.1:{closed_port}/app")
    assert (wrong.code, wrong.stdout, away.code) == (2, "", 1)
    assert "begins with mysql://" in one_line(wrong.stderr)
    assert str(closed_port) in one_line(away.stderr)


def test_the_url_of_the_command_wins_over_that_of_the_group_and_both_over_the_environment(
    cli: Cli, database_url: str, closed_port: int
) -> None:
    nowhere = f"postgresql://127.0.0.1:{closed_port}/app"
    assert cli("--database-url", database_url, "jobs", "list", url=nowhere).code == 0
    assert cli("--database-url", nowhere, "jobs", "list", "--database-url", database_url, url=nowhere).code == 0
    assert cli("--database-url", nowhere, "jobs", "list").code == 1


@pytest.mark.parametrize("scheme", ["postgres://", "postgresql+psycopg://", "postgresql+asyncpg://"])
def test_each_form_of_a_url_is_taken(cli: Cli, database_url: str, scheme: str) -> None:
    assert cli("jobs", "list", url=database_url.replace("postgresql://", scheme)).code == 0


def test_a_server_that_does_not_answer_is_given_up_after_the_connect_timeout(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/app"
        started = time.monotonic()
        assert cli("jobs", "list", url=f"{url}?connect_timeout=2").code == 1
        monkeypatch.setattr("akadze.cli.database._CONNECT_TIMEOUT", 2)
        assert cli("jobs", "list", url=url).code == 1
        assert cli("migrate", url=url).code == 1
        assert time.monotonic() - started >= 3


def test_a_statement_that_the_server_refuses_is_a_failure_of_one_line(cli: Cli, table: Table) -> None:
    table.rows("alter table akadze.jobs rename to jobs_gone")
    result = cli("jobs", "list")
    assert (result.code, result.stdout) == (1, "")
    assert one_line(result.stderr) == 'relation "akadze.jobs" does not exist'


def test_a_database_that_is_not_there_is_a_failure(cli: Cli, database_url: str) -> None:
    result = cli("jobs", "list", url=with_database(database_url, "akadze_nosuch_test"))
    assert result.code == 1
    assert "akadze_nosuch_test" in one_line(result.stderr)


def test_a_reading_command_works_where_nothing_may_be_written(cli: Cli, database_url: str, table: Table) -> None:
    name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(database_url)["dbname"])
    table.connection.execute(sql.SQL("alter database {} set default_transaction_read_only to on").format(name))
    try:
        assert [cli(*arguments).code for arguments in READING if "show" not in arguments] == [0] * 5
        refused = cli("queues", "pause", "q")
        assert (refused.code, one_line(refused.stderr)) == (
            1,
            "cannot execute INSERT in a read-only transaction",
        )
    finally:
        table.connection.execute("set default_transaction_read_only to off")
        table.connection.execute(sql.SQL("alter database {} reset default_transaction_read_only").format(name))


@pytest.mark.parametrize("arguments", [["nosuch"], ["jobs", "nosuch"], ["jobs", "list", "--nosuch"], ["jobs", "show"]])
def test_a_command_that_there_is_not_is_wrong_use(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.code, result.stdout) == (2, "")
    assert "Usage: akadze" in result.stderr


def test_the_version_is_told(command: Cli) -> None:
    result = command("--version", url=None)
    assert (result.code, result.stdout, result.stderr) == (0, f"akadze {__version__}\n", "")
