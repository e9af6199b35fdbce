"""What users may write by mistake. mypy --strict must refuse each marked line with these errors, and no other line."""

from __future__ import annotations

from datetime import datetime

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

import akadze.sync
import akadze.sync.testing
import akadze.testing
from akadze import Akadze, Retry, Snooze, Worker, current, list_jobs, pause_queue, request_cancel, set_limit
from akadze.job import Job

app = Akadze(database_url=7)  # E: arg-type


@app.task("mail.send")
async def send_mail(user_id: int, text: str = "") -> None: ...


@app.task("report", queue=5)  # E: arg-type
def report(day: datetime) -> None: ...


@app.task("curve", backoff=lambda attempt: 5)  # E: arg-type, return-value
def curve() -> None: ...


@app.periodic("clean", every=60)  # E: arg-type
def clean() -> None: ...


async def enqueue(connection: AsyncConnection, session: AsyncSession, raw: psycopg.AsyncConnection) -> None:
    await send_mail.using(session=connection).enqueue(user=7)  # E: call-arg
    await send_mail.using(session=session).enqueue(user_id="seven")  # E: arg-type
    await send_mail.using(session=raw).enqueue("seven")  # E: arg-type
    await send_mail.using(session=raw).enqueue(7, 8)  # E: arg-type
    await send_mail.using(session=connection).enqueue()  # E: call-arg
    send_mail.using(session=connection).enqueue(user_id=7)  # E: unused-coroutine
    await send_mail.using(session=connection).enqueue_many([1])  # E: list-item
    await send_mail.using(session=connection, delay=5).enqueue(user_id=7)  # E: call-overload
    await send_mail.using(connection).enqueue(user_id=7)  # E: call-overload
    await send_mail.using().enqueue(user_id=7)  # E: call-overload
    await send_mail.enqueue(user_id=7)  # E: attr-defined
    await send_mail(user_id=7)  # E: operator


def enqueue_blocking(connection: Connection, session: Session, raw: psycopg.Connection, engine: Engine) -> None:
    send_mail.using(session=connection).enqueue(user=7)  # E: call-arg
    send_mail.using(session=session).enqueue(user_id="seven")  # E: arg-type
    send_mail.using(session=raw).enqueue("seven")  # E: arg-type
    send_mail.using(session=connection).enqueue()  # E: call-arg
    send_mail.using(session=connection).enqueue_many([1])  # E: list-item
    send_mail.using(session=connection, unique_key=7).enqueue(user_id=7)  # E: call-overload
    send_mail.using(session=engine).enqueue(user_id=7)  # E: call-overload
    send_mail.using(session=None).enqueue(user_id=7)  # E: call-overload
    report.using(session=session).enqueue(day="today")  # E: arg-type


async def mixed(connection: Connection, engine: AsyncEngine) -> None:
    await send_mail.using(session=connection).enqueue(user_id=7)  # E: func-returns-value, misc
    await send_mail.using(session=engine).enqueue(user_id=7)  # E: call-overload
    with current().complete_tx():  # E: attr-defined, attr-defined
        pass
    async with akadze.sync.current().complete_tx():  # E: attr-defined, attr-defined
        pass


async def manage(engine: AsyncEngine, connection: AsyncConnection, blocking: Connection, other: Engine) -> None:
    await pause_queue(blocking, "mail")  # E: arg-type
    await list_jobs(other)  # E: arg-type
    await akadze.testing.drain(app, session=blocking)  # E: arg-type
    akadze.sync.pause_queue(connection, "mail")  # E: arg-type
    akadze.sync.list_jobs(engine)  # E: arg-type
    akadze.sync.testing.drain(app, session=connection)  # E: arg-type
    request_cancel(connection, 7)  # E: unused-coroutine
    await request_cancel(connection, "7")  # E: arg-type
    await request_cancel(engine, 7)  # E: arg-type
    await set_limit(connection, "k", "4")  # E: arg-type
    await set_limit(connection, "k", 4, 100)  # E: call-arg
    await pause_queue(connection, 7)  # E: arg-type
    print(list_jobs(engine)[0])  # E: index
    print((await list_jobs(engine, limit="5"))[0].args)  # E: arg-type, attr-defined
    await akadze.testing.drain(app, limit="5")  # E: arg-type
    akadze.testing.assert_enqueued(app, "mail.send")  # E: unused-coroutine


def manage_blocking(engine: Engine, connection: Connection) -> None:
    akadze.sync.request_cancel(connection, "7")  # E: arg-type
    akadze.sync.set_limit(connection, "k", window=60)  # E: arg-type
    print(akadze.sync.list_jobs(engine)[0].result)  # E: attr-defined
    akadze.sync.testing.drain(app, limit="5")  # E: arg-type


def outcomes(job: Job) -> None:
    job.attempt = 5  # E: misc
    raise Snooze() if job.attempt else Retry(5)  # E: call-arg, arg-type


def work() -> None:
    Worker(app, slots="4")  # E: arg-type
    Worker(app, queues="mail")  # E: arg-type
    app.hooks.on_enqueue.append(lambda: None)  # E: arg-type, misc
