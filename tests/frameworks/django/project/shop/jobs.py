"""The app and its tasks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connection, transaction

import akadze.sync
from akadze import Akadze, Retry
from akadze.contrib.django import complete_tx, database_url
from shop.models import Note, Order

app = Akadze(database_url=database_url())


@app.task("confirm", backoff=lambda attempt: timedelta(0))
def confirm(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.confirmed = True
    order.save()
    return f"confirmed by {os.getpid()}"


@app.task("note")
def note(text: str) -> None:
    Note.objects.create(text=text)


@app.task("note later", queue="later")
async def note_async(text: str) -> int:
    await Note.objects.acreate(text=text)
    return await Note.objects.acount()


@app.task("note and fail", max_attempts=1)
def note_and_fail(text: str) -> None:
    Note.objects.create(text=text)
    raise RuntimeError("after the note")


@app.task("order again", max_attempts=1)
def order_again(item: str, go_on: bool = False) -> None:
    """Break the unique item: an error of the database."""
    Note.objects.create(text="before the error")
    try:
        Order.objects.create(item=item)
    except Exception:
        if not go_on:
            raise


@app.task("finish", max_attempts=1)
def finish(text: str, then: str = "") -> None:
    """Write a note and finish in one transaction."""
    with complete_tx():
        Note.objects.create(text=text)
        if then == "raise inside":
            raise RuntimeError("inside the block")
        if then == "lose":
            _take_away()
        if then == "raise on commit":
            transaction.on_commit(_raise)
    if then == "raise after":
        raise RuntimeError("after the block")


@app.task("finish async", max_attempts=1)
async def finish_async(text: str, how: str) -> None:
    if how == "on Django's connection":
        await sync_to_async(_finish)(text)
    else:
        async with akadze.current().complete_tx() as other:
            await other.exec_driver_sql("insert into shop_note (text) values (%s)", (text,))


def _finish(text: str) -> None:
    with complete_tx():
        Note.objects.create(text=text)


@app.task("finish inside", max_attempts=1)
def finish_inside() -> None:
    with transaction.atomic(), complete_tx():
        Note.objects.create(text="inside")


@app.task("retry once")
def retry_once() -> None:
    Note.objects.create(text=f"attempt {akadze.sync.current().job.attempt}")
    if akadze.sync.current().job.attempt == 0:
        raise Retry(timedelta(0))


@app.task("count", max_attempts=2, backoff=lambda attempt: timedelta(0))
def count(seconds: float = 0) -> tuple[int, str, int]:
    """Use the database for a while, and tell which of its connections that was, and which thread."""
    time.sleep(seconds)
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (pid,) = cursor.fetchone()
    return Note.objects.count(), str(pid), threading.get_ident()


@app.task("count async", max_attempts=2, backoff=lambda attempt: timedelta(0))
async def count_async(seconds: float = 0) -> int:
    await asyncio.sleep(seconds)
    return await Note.objects.acount()


def _raise() -> None:
    raise RuntimeError("on commit")


def _take_away() -> None:
    """As a rescue would, on a connection of its own."""
    job_id = akadze.sync.current().job.id
    with app.sync_engine.begin() as other:
        other.exec_driver_sql("update akadze.jobs set worker_id = gen_random_uuid() where id = %s", (job_id,))
