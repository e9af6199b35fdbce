"""A database with worker processes on it, with the settings of cases that name none."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
from psycopg.rows import dict_row

import akadze.sync
from tests.field import runs
from tests.processes import Process, Starter
from tests.waiting import PATIENCE, wait_until

#: As options of Worker that `tests.worker.serving` takes, in seconds.
OPTIONS: dict[str, Any] = {
    "heartbeat_interval": 0.5,
    "heartbeat_ttl": 3,
    "poll_interval": 0.2,
    "shutdown_timeout": 2,
}
_ROOT = Path(__file__).parent.parent.parent
_PRELUDE = """
import asyncio, os, signal, sys, threading, time
from datetime import UTC, datetime, timedelta
from pathlib import Path
import akadze
from akadze import *
from akadze import Akadze, current
from tests.field.runs import execute, logged, note

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
AT_ONCE = lambda attempt: timedelta(0)
"""


class World:
    """A migrated database: worker processes (W1, W2, ...), and what is committed in it."""

    def __init__(self, directory: Path, url: str) -> None:
        self.url = url
        self.directory = directory
        self._starter = Starter(directory, url)
        akadze.sync.migrate(url)
        runs.create(url)

    def start_anew(self) -> None:
        """Let workers start a new interpreter, which also ends as those of users do."""
        self._starter.anew = True

    def worker(
        self,
        source: str,
        *options: str,
        prelude: bool = True,
        environment: Mapping[str, str] | None = None,
        **named: Any,
    ) -> Process:
        """Start `akadze worker` and wait until it beats.

        `source` is the rest of its module after the imports above; `named` are options as in OPTIONS, and slots.
        """
        known = {row["id"] for row in self.rows("select id from akadze.workers")}
        process = self.spawn(source, *options, prelude=prelude, environment=environment, **named)

        def beats() -> bool:
            assert process.returncode is None, process.stderr
            return any(row["id"] not in known for row in self.rows("select id from akadze.workers"))

        wait_until(beats)
        return process

    def spawn(
        self,
        source: str,
        *options: str,
        prelude: bool = True,
        environment: Mapping[str, str] | None = None,
        **named: Any,
    ) -> Process:
        """Start `akadze worker`, without waiting."""
        flags = [
            item for name, value in {**OPTIONS, **named}.items() for item in (f"--{name.replace('_', '-')}", str(value))
        ]
        text = (_PRELUDE if prelude else "") + dedent(source)
        return self._starter(text, *flags, *options, environment={"PYTHONPATH": str(_ROOT), **(environment or {})})

    def command(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start any `akadze` command in the folder of the workers' modules (worker1, worker2, ...)."""
        return self._starter.command(*arguments, environment={"PYTHONPATH": str(_ROOT), **(environment or {})})

    def program(self, source: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start a Python program given as text."""
        return self._starter.program(source, *arguments, environment={"PYTHONPATH": str(_ROOT), **(environment or {})})

    def connect(self, **options: Any) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(self.url, autocommit=True, row_factory=dict_row, **options)

    def rows(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run a statement on a connection of its own, committed at once."""
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        """Return the first column of the first row, None if there is none."""
        rows = self.rows(statement, *parameters)
        return next(iter(rows[0].values())) if rows else None

    def until(self, question: str, *parameters: Any, timeout: float = PATIENCE) -> None:
        """Wait until the answer is true."""
        wait_until(lambda: self.value(question, *parameters), timeout=timeout)

    def enqueue(self, task: str, count: int = 1, **options: Any) -> list[int]:
        """Enqueue jobs of a task that some worker knows, committed at once; `args` are its arguments.

        `queue` and the options of `Task.using` are given by name. Returns the ids.
        """
        arguments = options.pop("args", {})
        stand_in = akadze.Akadze(database_url=self.url)

        def body(**given: Any) -> None: ...

        body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Any) for name in arguments]
        )
        registered = stand_in.register(body, name=task, queue=options.pop("queue", "default"))
        last = self.value("select coalesce(max(id), 0) from akadze.jobs")
        with self.connect() as connection, connection.transaction():
            bound = registered.using(session=connection, **options)
            for _ in range(count):
                bound.enqueue(**arguments)
        stand_in.close()
        added = self.rows("select id from akadze.jobs where id > %s and task = %s order by id", last, task)
        return [row["id"] for row in added]

    def job(self, job_id: int) -> dict[str, Any]:
        """Return the row, with the names of its errors beside it."""
        row = self.rows("select * from akadze.jobs where id = %s", job_id)[0]
        return {**row, "error_names": [entry["error"] for entry in row["errors"]]}

    def in_state(self, job_id: int, *states: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until the job is in one of the states; return its row."""
        wait_until(lambda: self.job(job_id)["state"] in states, timeout=timeout)
        return self.job(job_id)

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return {
            row["state"]: row["count"] for row in self.rows("select state, count(*) from akadze.jobs group by state")
        }

    def end(self) -> None:
        self._starter.end()
