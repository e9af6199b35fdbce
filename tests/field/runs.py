"""The run log: what bodies did and when, written on connections that are not akadze's.

Worker processes and tests use it alike: a process finds its database in AKADZE_DATABASE_URL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from akadze import current

_CREATE = """
create table if not exists public.runs (
    job_id bigint, run integer, pid integer, started timestamptz, stopped timestamptz
);
create table if not exists public.notes (
    id bigint generated always as identity, noted_at timestamptz default clock_timestamp(), pid integer, note text
)
"""
_OVERLAPS = """
select count(*)
from public.runs a join public.runs b on b.job_id = a.job_id and b.ctid <> a.ctid
where a.started <= b.started and b.started < coalesce(a.stopped, 'infinity')
"""
#: The most runs of each key under way at once, of bodies that note "start KEY" once they have begun and "stop KEY"
#: before they end. Unlike `logged` they read nothing, so that nothing of it conflicts under serializable.
MOST_NOTED = """
select key, max(under_way) as most
from (
    select split_part(note, ' ', 2) as key, sum(case when note like 'start %%' then 1 else -1 end)
        over (partition by split_part(note, ' ', 2) order by noted_at, id) as under_way
    from public.notes
) as n
group by key
order by key
"""


def create(url: str) -> None:
    """Make the tables of the log."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CREATE)


def execute(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement on a connection of its own, committed at once, and return its rows."""
    with psycopg.connect(os.environ["AKADZE_DATABASE_URL"], autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def note(text: str) -> None:
    """Write a line into public.notes."""
    execute("insert into public.notes (pid, note) values (%s, %s)", os.getpid(), text)


@contextmanager
def logged() -> Iterator[None]:
    """Log the start and the end of the current run, around its body."""
    job = current().job
    execute("insert into public.runs values (%s, %s, %s, clock_timestamp(), null)", job.id, job.run_count, os.getpid())
    try:
        yield
    finally:
        execute(
            "update public.runs set stopped = clock_timestamp() where job_id = %s and run = %s and pid = %s",
            job.id,
            job.run_count,
            os.getpid(),
        )


def overlaps(url: str) -> int:
    """Count pairs of runs of one job of which the second began before the first had ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_OVERLAPS).fetchone()
        assert row is not None
        return int(row[0])
