"""When each run of a job began and ended, noted by its body on a connection that is not akadze's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from akadze.job import Job
from tests.claims.clients import Client

#: Just after each start of a run of the key: how many of its runs were under way.
_MOST_AT_ONCE = """
select coalesce(max((
  select count(*) from public.runs b
  where b.key is not distinct from a.key and b.started <= a.started and b.stopped > a.started
)), 0)
from public.runs a
where a.key is not distinct from %s
"""
#: Claims of the key's jobs between two times, while a body of another was still running.
_OVERLAPPING = """
select count(*)
from akadze.jobs a
where a.limit_key = %(key)s and a.started_at between %(after)s and %(before)s and exists (
  select from akadze.jobs b
  join public.runs r on r.job_id = b.id
  where b.limit_key = a.limit_key and b.id <> a.id and b.started_at <= a.started_at and r.stopped > a.started_at)
"""
#: Just after each claim of a job of the key: how many of its claims lie in the window that ends there.
_MOST_STARTS = """
select max((
  select count(*) from akadze.jobs b
  where b.limit_key = a.limit_key and b.started_at <= a.started_at
    and b.started_at > a.started_at - make_interval(secs => %(window)s)
))
from akadze.jobs a
where a.limit_key = %(key)s
"""


class RunLog:
    """A table of runs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self) -> None:
        await self._client.sql(
            "create table public.runs (job_id bigint, run integer, key text, started timestamptz, stopped timestamptz)"
        )

    @asynccontextmanager
    async def run(self, job: Job) -> AsyncIterator[None]:
        await self._client.sql(
            "insert into public.runs values (%s, %s, %s, clock_timestamp())", [job.id, job.run_count, job.limit_key]
        )
        try:
            yield
        finally:
            await self._client.sql(
                "update public.runs set stopped = clock_timestamp() where job_id = %s and run = %s",
                [job.id, job.run_count],
            )

    async def count(self) -> int:
        """Count the runs that have ended."""
        found: int = await self._client.value("select count(stopped) from public.runs")
        return found

    async def most_at_once(self, key: str | None) -> int:
        """The most runs of the key at the start of one of them."""
        found: int = await self._client.value(_MOST_AT_ONCE, [key])
        return found

    async def overlapping_starts(self, key: str, after: datetime, before: datetime) -> int:
        """Count claims between the two times of jobs that did not run alone. Each job must have run once."""
        found: int = await self._client.value(_OVERLAPPING, {"key": key, "after": after, "before": before})
        return found

    async def most_starts(self, key: str, *, window: float) -> int:
        """The most starts of the key's jobs within so many seconds."""
        found: int = await self._client.value(_MOST_STARTS, {"key": key, "window": window})
        return found
