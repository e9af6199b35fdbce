"""What the tables hold, read on a connection of the test's own, and jobs put into them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import text

from akadze.task import Task
from tests.database import NAME_OF_SESSION
from tests.waiting import PATIENCE, until

#: The other sessions of this test's database, to ask about.
SESSIONS = (
    "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    f" and backend_type = 'client backend' and application_name <> '{NAME_OF_SESSION}'"
)

_ENDED = {"succeeded", "failed", "cancelled"}


class Table:
    """Committed rows, each statement in a transaction of its own."""

    def __init__(self, connection: psycopg.AsyncConnection[dict[str, Any]]) -> None:
        self._connection = connection

    async def rows(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        cursor = await self._connection.execute(statement, parameters)
        return await cursor.fetchall() if cursor.description else []

    async def value(self, statement: str, *parameters: Any) -> Any:
        """Return the first column of the first row, None if there is none."""
        rows = await self.rows(statement, *parameters)
        return next(iter(rows[0].values())) if rows else None

    async def until(self, question: str, *parameters: Any, timeout: float = PATIENCE) -> None:
        """Wait until the answer is true."""
        await until(lambda: self.value(question, *parameters), timeout=timeout)

    async def job(self, job_id: int) -> dict[str, Any]:
        """Return the row, with the names of its errors beside it."""
        row = (await self.rows("select * from akadze.jobs where id = %s", job_id))[0]
        return {**row, "error_names": [entry["error"] for entry in row["errors"]]}

    async def jobs(self, *job_ids: int) -> list[dict[str, Any]]:
        return [await self.job(job_id) for job_id in job_ids]

    async def states(self) -> dict[int, str]:
        return {row["id"]: row["state"] for row in await self.rows("select id, state from akadze.jobs")}

    async def in_state(self, job_id: int, *states: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until the job is in one of the states; return its row."""
        row: dict[str, Any] = {}

        async def there() -> bool:
            nonlocal row
            row = await self.job(job_id)
            return row["state"] in states

        await until(there, timeout=timeout)
        return row

    async def ended(self, job_id: int, *more: int, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until all these jobs have ended; return the row of the first."""
        for other in more:
            await self.in_state(other, *_ENDED, timeout=timeout)
        return await self.in_state(job_id, *_ENDED, timeout=timeout)

    async def add_worker(self, *, ttl: float, silent_for: float) -> str:
        """Write the row of a worker that last beat so many seconds ago."""
        worker_id = str(uuid4())
        await self.rows(
            "insert into akadze.workers (id, hostname, pid, queues, heartbeat_at, heartbeat_ttl) values"
            " (%s, 'elsewhere', 1, '{default}', now() - make_interval(secs => %s), make_interval(secs => %s))",
            worker_id,
            silent_for,
            ttl,
        )
        return worker_id

    async def start_elsewhere(self, worker_id: str, *job_ids: int) -> None:
        """Make queued jobs running ones of that worker, as its claim would."""
        await self.rows(
            "update akadze.jobs set state = 'running', run_count = run_count + 1, worker_id = %s, started_at = now()"
            " where id = any(%s) and state = 'queued'",
            worker_id,
            list(job_ids),
        )


@asynccontextmanager
async def open_table(database_url: str) -> AsyncIterator[Table]:
    connection = await psycopg.AsyncConnection.connect(
        database_url, autocommit=True, row_factory=dict_row, application_name="test"
    )
    async with connection:
        yield Table(connection)


async def enqueue(task: Task[Any], arguments: Mapping[str, Any] | None = None, **options: Any) -> int:
    """Enqueue one job in a transaction of its own, and return its id."""
    async with task.app.engine.begin() as connection:
        await task.using(session=connection, **options).enqueue(**(arguments or {}))
        statement = text("select currval(pg_get_serial_sequence('akadze.jobs', 'id'))")
        return int((await connection.execute(statement)).scalar_one())


async def enqueue_many(task: Task[Any], items: list[Mapping[str, Any]], **options: Any) -> list[int]:
    """Enqueue jobs in one transaction, and return their ids."""
    async with task.app.engine.begin() as connection:
        await task.using(session=connection, **options).enqueue_many(items)
        statement = text("select currval(pg_get_serial_sequence('akadze.jobs', 'id'))")
        last = int((await connection.execute(statement)).scalar_one())
        return list(range(last - len(items) + 1, last + 1))
