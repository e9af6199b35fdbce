"""What users write, as mypy --strict sees it. Checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import psycopg
import psycopg_pool
import pydantic
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session, scoped_session
from sqlmodel import Session as ModelSession
from sqlmodel.ext.asyncio.session import AsyncSession as AsyncModelSession

import akadze.sync
import akadze.sync.metrics
import akadze.sync.testing
import akadze.testing
from akadze import (
    Akadze,
    AkadzeError,
    BackoffPolicy,
    Cancel,
    DuplicateJob,
    EnqueueError,
    Fail,
    JobSummary,
    LimitSummary,
    QueueSnapshot,
    Retry,
    ScheduleSpec,
    Snooze,
    StateCount,
    Worker,
    WorkerSummary,
    applied_versions,
    clear_limit,
    current,
    list_jobs,
    list_limits,
    list_workers,
    migrate,
    pause_queue,
    queue_snapshot,
    request_cancel,
    requeue,
    resume_queue,
    set_limit,
)
from akadze.context import Context
from akadze.hooks import Hooks
from akadze.job import Job
from akadze.metrics import render_metrics
from akadze.task import BoundTask, Task

URL = "postgresql://localhost/app"
app = Akadze(database_url=URL, pool_size=25, grace=timedelta(minutes=5), retention=timedelta(days=1))
shared = Akadze(engine=create_async_engine(URL), sync_engine=create_engine(URL))


class Address(pydantic.BaseModel):
    street: str


def curve(attempt: int) -> timedelta:
    return timedelta(seconds=attempt)


policy: BackoffPolicy = curve


@app.task("mail.send", queue="mail", max_attempts=6, timeout=timedelta(seconds=30), priority=5, backoff=policy)
async def send_mail(user_id: int, text: str = "", *, to: Address | None = None) -> str:
    job = assert_type(current(), Context).job
    assert_type(job, Job)
    assert_type(job.attempt, int)
    assert_type(job.worker_id, UUID | None)
    async with current().complete_tx() as connection:
        await assert_type(connection, AsyncConnection).exec_driver_sql("select 1")
    if job.attempt > 3:
        raise Fail("no use")
    raise Retry(timedelta(seconds=1))


@app.task("report", backoff=lambda attempt: timedelta(minutes=attempt))
def report(day: datetime, tenants: list[UUID]) -> dict[str, int]:
    with akadze.sync.current().complete_tx() as connection:
        assert_type(connection, Connection).exec_driver_sql("select 1")
    if not tenants:
        raise Cancel("nothing to do")
    raise Snooze(timedelta(hours=1))


@app.periodic("clean", cron="0 3 * * *", timezone="Europe/Prague", overlap=False)
async def clean() -> None: ...


def plain(n: int) -> None: ...


registered = app.register(plain, name="plain", queue="other")
app.add_schedule("clean", every=timedelta(hours=1), queue="slow")
app.add_schedules([ScheduleSpec(name="clean", cron="0 4 * * *"), {"name": "clean", "every": timedelta(days=1)}])
app.include("app.tasks", "app.more")


async def enqueue(
    connection: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    model: AsyncModelSession,
    raw: psycopg.AsyncConnection[Any],
    other: Any,
) -> None:
    bound = send_mail.using(
        session=connection,
        delay=timedelta(minutes=1),
        priority=1,
        max_attempts=2,
        unique_key="mail-7",
        limit_key="smtp",
        expires_at=datetime.now(UTC),
        meta={"tenant": 1, "tags": ["a"]},
    )
    # mypy has no spelling for the parameters, so only the kind is named here.
    kept: BoundTask[...] = bound
    await kept.enqueue(user_id=7)
    try:
        assert_type(await bound.enqueue(user_id=7, text="x", to=Address(street="Long")), None)
    except DuplicateJob:
        pass
    except (EnqueueError, AkadzeError) as error:
        print(error)
    await send_mail.using(session=session).enqueue(user_id=7)
    await send_mail.using(session=scoped).enqueue(user_id=7)
    await send_mail.using(session=model).enqueue(user_id=7)
    await send_mail.using(session=raw, run_at=datetime.now(UTC)).enqueue(user_id=7)
    await send_mail.using(session=other).enqueue(user_id=7)  # asyncpg's connection, which has no types
    await registered.using(session=session).enqueue(n=1)
    await report.using(session=session).enqueue(day=datetime.now(UTC), tenants=[])
    await clean.using(session=session).enqueue()
    assert_type(await send_mail.using(session=session).enqueue_many({"user_id": n} for n in range(3)), None)


def enqueue_blocking(
    connection: Connection,
    session: Session,
    scoped: scoped_session[Session],
    model: ModelSession,
    raw: psycopg.Connection[Any],
    untyped: Any,
) -> None:
    assert_type(send_mail.using(session=connection).enqueue(user_id=7, text="x"), None)
    send_mail.using(session=session, unique_key="mail-7", delay=timedelta(minutes=1)).enqueue(user_id=7)
    send_mail.using(session=scoped).enqueue(user_id=7)
    send_mail.using(session=model).enqueue(user_id=7)
    send_mail.using(session=raw, meta={"tenant": 1}).enqueue(user_id=7)
    send_mail.using(session=untyped).enqueue(user_id=7)  # Django's connection, without its stubs
    report.using(session=session).enqueue(day=datetime.now(UTC), tenants=[])
    assert_type(registered.using(session=session).enqueue_many([{"n": 1}, {"n": 2}]), None)


def follow(app: Akadze) -> None:
    async def on_enqueue(connection: AsyncConnection, job: Job) -> None: ...

    def on_transition(connection: Connection, job: Job, from_state: str, to_state: str) -> None: ...

    def before(job: Job) -> None: ...

    async def after(job: Job) -> None: ...

    hooks = assert_type(app.hooks, Hooks)
    hooks.on_enqueue.append(on_enqueue)
    hooks.on_transition.append(on_transition)
    hooks.before_run.append(before)
    hooks.after_run.append(after)
    hooks.on_enqueue += [lambda connection, job: None]


async def manage(engine: AsyncEngine, pool: psycopg_pool.AsyncConnectionPool[Any]) -> None:
    assert_type(await migrate(URL), None)
    assert_type(await applied_versions(URL), list[str])
    async with engine.begin() as connection:
        await request_cancel(connection, 7)
        await requeue(connection, 7)
        await pause_queue(connection, "mail")
        await resume_queue(connection, "mail")
        await set_limit(connection, "smtp", 4)
        await set_limit(connection, "smtp", max_running=4, max_starts=100, window=timedelta(minutes=1))
        await clear_limit(connection, "smtp")
        await list_jobs(connection)
    jobs = assert_type(
        await list_jobs(engine, queue="mail", state="failed", limit=5, meta={"a": 1}), tuple[JobSummary, ...]
    )
    assert_type(jobs[0].finished_at, datetime | None)
    snapshot = assert_type(await queue_snapshot(pool), QueueSnapshot)
    assert_type(snapshot.counts, tuple[StateCount, ...])
    assert_type(snapshot.lag, timedelta | None)
    assert_type(await list_limits(engine), tuple[LimitSummary, ...])
    assert_type(await list_workers(engine), tuple[WorkerSummary, ...])
    assert_type(await render_metrics(engine), str)
    assert_type(app.engine, AsyncEngine)
    await app.aclose()


def manage_blocking(engine: Engine, pool: psycopg_pool.ConnectionPool[Any]) -> None:
    assert_type(akadze.sync.applied_versions(URL), list[str])
    with engine.begin() as connection:
        akadze.sync.request_cancel(connection, 7)
        akadze.sync.requeue(connection, 7)
        akadze.sync.pause_queue(connection, "mail")
        akadze.sync.resume_queue(connection, "mail")
        akadze.sync.set_limit(connection, "smtp", max_starts=100, window=timedelta(minutes=1))
        akadze.sync.clear_limit(connection, "smtp")
    jobs = assert_type(akadze.sync.list_jobs(engine, queue="mail"), tuple[JobSummary, ...])
    assert_type(jobs[0].run_at, datetime)
    assert_type(akadze.sync.queue_snapshot(pool), QueueSnapshot)
    assert_type(akadze.sync.list_limits(engine), tuple[LimitSummary, ...])
    assert_type(akadze.sync.list_workers(engine), tuple[WorkerSummary, ...])
    assert_type(akadze.sync.metrics.render_metrics(engine), str)
    assert_type(app.sync_engine, Engine)


async def test_jobs(connection: AsyncConnection) -> None:
    await akadze.testing.drain(app)
    await akadze.testing.drain(app, limit=5, session=connection)
    await akadze.testing.assert_enqueued(app, "mail.send", user_id=7, text="x")


def test_jobs_blocking(connection: Connection) -> None:
    akadze.sync.testing.drain(app, limit=5, session=connection)
    akadze.sync.testing.assert_enqueued(app, "mail.send", user_id=7)


async def work() -> None:
    worker = Worker(
        app,
        queues=["mail"],
        slots=4,
        heartbeat_interval=timedelta(seconds=5),
        heartbeat_ttl=timedelta(seconds=30),
        poll_interval=timedelta(seconds=1),
        shutdown_timeout=timedelta(seconds=10),
        fair=True,
    )
    assert_type(await worker.serve(asyncio.Event()), None)


def register(app: Akadze) -> None:
    def each(task: Task[...]) -> Callable[..., Any]:
        return task.fn

    each(send_mail)
    each(report)
