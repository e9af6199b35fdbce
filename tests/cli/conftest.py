"""The command line in the process of the test (`cli`), and as a process of its own (`command`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from typer.testing import CliRunner

from akadze.cli.commands import app as commands
from tests.processes import COMMAND, Starter


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


Cli = Callable[..., Result]


class Table:
    """Jobs put into the database of the test, and what its tables hold."""

    def __init__(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        self.connection = connection

    def rows(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def job(self, job_id: int) -> dict[str, Any]:
        return self.rows("select * from akadze.jobs where id = %s", job_id)[0]

    def insert(self, **columns: Any) -> int:
        """Insert a job as a worker would have left it, and return its id."""
        columns = {"task": "mail", "queue": "default", **columns}
        names = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns))
        places = psycopg.sql.SQL(", ").join(psycopg.sql.Placeholder() * len(columns))
        query = psycopg.sql.SQL("insert into akadze.jobs ({}) overriding system value values ({}) returning id").format(
            names, places
        )
        row = self.connection.execute(query, list(columns.values())).fetchone()
        assert row is not None
        return int(row["id"])


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        yield Table(connection)


@pytest.fixture
def cli(database_url: str) -> Cli:
    """Run a command in this process, on the database of the test unless `url` names another; None: no URL at all."""

    def run(*arguments: str, url: str | None = database_url, environment: Mapping[str, str] | None = None) -> Result:
        variables: dict[str, str | None] = {"AKADZE_DATABASE_URL": url, "COLUMNS": "200", **(environment or {})}
        result = CliRunner().invoke(commands, list(arguments), env=variables, prog_name="akadze")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def command(database_url: str, tmp_path: Path) -> Cli:
    """Run a command as a process, in the test's `tmp_path`, until it ends by itself."""

    def run(*arguments: str, url: str | None = database_url, environment: Mapping[str, str] | None = None) -> Result:
        variables = {**os.environ, **({} if url is None else {"AKADZE_DATABASE_URL": url}), **(environment or {})}
        done = subprocess.run(
            [COMMAND, *arguments], capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=60, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands believe that a person at a terminal reads them."""
    monkeypatch.setattr("akadze.cli.output._for_person", lambda: True)


@pytest.fixture
def start_worker(tmp_path: Path, database_url: str) -> Iterator[Starter]:
    """As elsewhere, but each process starts a new interpreter, as those of users do."""
    starter = Starter(tmp_path, database_url, anew=True)
    yield starter
    starter.end()
