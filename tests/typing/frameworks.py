"""What users of the pytest plugin and of a lifespan write, as mypy --strict sees it. Checked, never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from akadze import Akadze, Worker
from akadze.contrib.fastapi import lifespan_worker
from akadze.job import Job
from akadze.pytest_plugin import AsyncJobs, Jobs

app = Akadze(database_url="postgresql://localhost/app_test")


@app.task("pack")
async def pack(order_id: int) -> None: ...


def blocking(jobs: Jobs, connection: Connection, session: Session, raw: psycopg.Connection) -> None:
    assert_type(jobs.app, Akadze)
    assert_type(jobs.enqueued(), list[Job])
    assert_type(jobs.enqueued(pack), list[Job])
    jobs.assert_enqueued("pack", order_id=7)
    jobs.refute_enqueued(pack)
    jobs.drain(limit=10)
    assert_type(jobs.on(connection), Jobs)
    assert_type(jobs.on(session), Jobs)
    assert_type(jobs.on(raw), Jobs)


async def awaited(jobs: AsyncJobs, connection: AsyncConnection, session: AsyncSession, blocking: Jobs) -> None:
    assert_type(await jobs.enqueued("pack"), list[Job])
    await jobs.assert_enqueued(pack, order_id=7)
    await jobs.refute_enqueued("pack")
    await jobs.drain()
    assert_type(jobs.on(connection), AsyncJobs)
    assert_type(blocking.on(session), AsyncJobs)


async def lifespan() -> None:
    async with lifespan_worker(app, slots=4, poll_interval=timedelta(seconds=1), on_failure=print) as worker:
        assert_type(worker, Worker)
