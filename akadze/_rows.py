"""Rows as they come from the statements, made into what callers and hooks see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from akadze._options import NewJob
from akadze._states import QUEUED
from akadze.job import Job
from akadze.summaries import JobSummary, LimitSummary, WorkerSummary

Row = Mapping[str, Any]

_INSTANTS = ("run_at", "expires_at", "cancel_requested_at", "started_at")


def instant(value: Any) -> Any:
    """Make a datetime in UTC, None for None, of ISO text; a datetime, as a worker's own connection gives it, stays."""
    return datetime.fromisoformat(value).astimezone(UTC) if isinstance(value, str) else value


def claimed(row: Row) -> tuple[Any, ...]:
    """Make a ClaimedRow of a row of claim_ready."""
    return tuple(instant(value) if name in _INSTANTS else value for name, value in row.items())


def job(row: Row) -> Job:
    """Make a Job of a row of read_jobs, or of a claimed row with state, result and worker added."""
    worker_id = row["worker_id"]
    result = row["result"]
    return Job(
        id=row["id"],
        task=row["task"],
        queue=row["queue"],
        priority=row["priority"],
        state=row["state"],
        args=json.loads(row["args"]),
        run_count=row["run_count"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        snoozes=row["snoozes"],
        unique_key=row["unique_key"],
        limit_key=row["limit_key"],
        worker_id=UUID(worker_id) if isinstance(worker_id, str) else worker_id,
        errors=json.loads(row["errors"]),
        result=json.loads(result) if result is not None else None,
        cancel_requested_at=instant(row["cancel_requested_at"]),
        expires_at=instant(row["expires_at"]),
        expired=row["expired"],
        meta=json.loads(row["meta"]),
    )


def enqueued(new: NewJob, job_id: int, args: str) -> Job:
    """Make the Job of a row that was just inserted with these options and arguments.

    It is known without a look at the table, so who enqueues needs no right to read what others have enqueued.
    """
    return Job(
        id=job_id,
        task=new.task,
        queue=new.queue,
        priority=new.priority,
        state=QUEUED,
        args=json.loads(args),
        run_count=0,
        attempt=0,
        max_attempts=new.max_attempts,
        snoozes=0,
        unique_key=new.unique_key,
        limit_key=new.limit_key,
        worker_id=None,
        errors=[],
        result=None,
        cancel_requested_at=None,
        expires_at=new.expires_at,
        meta=json.loads(new.meta),
    )


def job_summary(row: Row) -> JobSummary:
    return JobSummary(
        id=row["id"],
        task=row["task"],
        queue=row["queue"],
        state=row["state"],
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        run_at=instant(row["run_at"]),
        started_at=instant(row["started_at"]),
        finished_at=instant(row["finished_at"]),
        meta=MappingProxyType(json.loads(row["meta"])),
    )


def limit_summary(row: Row) -> LimitSummary:
    microseconds = row["microseconds"]
    return LimitSummary(
        key=row["key"],
        max_running=row["max_running"],
        max_starts=row["max_starts"],
        window=timedelta(microseconds=microseconds) if microseconds is not None else None,
    )


def worker_summary(row: Row) -> WorkerSummary:
    return WorkerSummary(
        id=UUID(row["id"]),
        hostname=row["hostname"],
        pid=row["pid"],
        queues=tuple(row["queues"]),
        started_at=instant(row["started_at"]),
        heartbeat_at=instant(row["heartbeat_at"]),
    )
