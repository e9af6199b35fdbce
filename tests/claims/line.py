"""Jobs, limits and workers put straight into the tables, and read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

from akadze._statement import statement
from tests.claims.clients import Client, Row

_ADD_JOBS = """
insert into akadze.jobs (task, queue, priority, run_at, limit_key, unique_key, state, run_count, attempt, max_attempts,
  worker_id, started_at, finished_at, expires_at, cancel_requested_at)
select %(task)s, %(queue)s, %(priority)s, now() + make_interval(secs => %(after)s), %(limit_key)s, %(unique_key)s,
  %(state)s, %(run_count)s, %(attempt)s, %(max_attempts)s, cast(%(worker)s as uuid),
  case when %(state)s <> 'queued' then now() end,
  case when %(state)s in ('succeeded', 'failed', 'cancelled') then now() + make_interval(secs => %(after)s) end,
  now() + make_interval(secs => cast(%(expires_after)s as double precision)),
  now() + make_interval(secs => cast(%(cancel_after)s as double precision))
from generate_series(1, %(count)s)
returning id
"""
_INSERT_WORKER = statement("workers", "insert_worker")


class Line:
    """The jobs of a test. Times are seconds from now."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def add(
        self,
        count: int = 1,
        *,
        task: str = "work",
        queue: str = "default",
        priority: int = 0,
        after: float = 0,
        key: str | None = None,
        unique_key: str | None = None,
        state: str = "queued",
        run_count: int = 0,
        attempt: int = 0,
        max_attempts: int = 3,
        worker: UUID | None = None,
        expires_after: float | None = None,
        cancel_after: float | None = None,
    ) -> list[int]:
        """Insert jobs and return their ids, in order."""
        if state == "running":
            worker = worker or uuid4()
            run_count = run_count or 1
        rows = await self.client.sql(
            _ADD_JOBS,
            {
                "count": count,
                "task": task,
                "queue": queue,
                "priority": priority,
                "after": after,
                "limit_key": key,
                "unique_key": unique_key,
                "state": state,
                "run_count": run_count,
                "attempt": attempt,
                "max_attempts": max_attempts,
                "worker": worker,
                "expires_after": expires_after,
                "cancel_after": cancel_after,
            },
        )
        return [row["id"] for row in rows]

    async def add_one(self, **options: Any) -> int:
        return (await self.add(**options))[0]

    async def limit(
        self, key: str, max_running: int | None = None, *, max_starts: int | None = None, window: float | None = None
    ) -> None:
        await self.client.sql(
            'insert into akadze.limits (key, max_running, max_starts, "window")'
            " values (%s, %s, %s, make_interval(secs => %s))",
            [key, max_running, max_starts, window],
        )

    async def register(self, worker: UUID, *, ttl: float = 3600, silent_for: float = 0) -> None:
        """Write a worker's row, whose last heartbeat was ``silent_for`` seconds ago."""
        await self.client.run(_INSERT_WORKER, id=str(worker), hostname="host", pid=1, queues=["default"], ttl=ttl)
        await self.client.sql(
            "update akadze.workers set heartbeat_at = now() - make_interval(secs => %s) where id = %s",
            [silent_for, worker],
        )

    async def job(self, job_id: int) -> Row:
        rows = await self.client.sql("select * from akadze.jobs where id = %s", [job_id])
        assert rows, f"job {job_id} is gone"
        return rows[0]

    async def state(self, job_id: int) -> str:
        return str((await self.job(job_id))["state"])

    async def running(self, key: str | None = None) -> list[int]:
        rows = await self.client.sql(
            "select id from akadze.jobs where state = 'running' and (%(any)s or limit_key = %(key)s) order by id",
            {"any": key is None, "key": key},
        )
        return [row["id"] for row in rows]

    async def states(self) -> dict[str, int]:
        rows = await self.client.sql("select state, count(*) as jobs from akadze.jobs group by state")
        return {row["state"]: row["jobs"] for row in rows}

    async def starts(self, key: str) -> int:
        """Count the start marks of a key."""
        marks: int = await self.client.value("select count(*) from akadze.limit_starts where key = %s", [key])
        return marks

    async def age_starts(self, key: str, seconds: float) -> None:
        """Let time pass for the starts of a key."""
        await self.client.sql(
            "update akadze.limit_starts set started_at = started_at - make_interval(secs => %s) where key = %s",
            [seconds, key],
        )


def ids(rows: Iterable[Row]) -> list[int]:
    return [row["id"] for row in rows]
