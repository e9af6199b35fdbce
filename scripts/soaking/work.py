"""The app that the workers of a soak serve. Each body logs its start and its end, and how it ended."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import text

import akadze.sync
from akadze import Akadze, Cancel, Fail, Retry, Snooze, current
from akadze.job import Job
from soaking import log
from soaking.kinds import SCHEDULES

_EFFECT = text("insert into public.effects (job_id, run) values (:job, :run)")

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"], pool_size=15)


def soon(attempt: int) -> timedelta:
    return timedelta(seconds=0.2 * attempt)


@contextmanager
def logged(job: Job) -> Iterator[None]:
    """Log the run around its body. The end says what the body raised, or that it returned."""
    run = {"job": job.id, "run": job.run_count}
    log.write("start", **run, worker=str(job.worker_id), task=job.task, key=job.limit_key)
    ended = "returned"
    try:
        yield
    except BaseException as error:
        ended = type(error).__name__
        raise
    finally:
        log.write("end", **run, how=ended)


def chance(job: Job, token: str) -> random.Random:
    """The same for the same run of the same job of a seed."""
    return random.Random(f"{token} {job.run_count}")


def misbehave(dice: random.Random) -> None:
    match dice.randrange(10):
        case 0 | 1:
            raise RuntimeError("as planned")
        case 2:
            raise Retry(timedelta(seconds=dice.random()))
        case 3 | 4:
            raise Snooze(timedelta(seconds=dice.random()))
        case 5:
            raise Fail("as planned")
        case 6:
            raise Cancel("as planned")


@app.task("quick", max_attempts=5, backoff=soon)
async def quick(token: str) -> dict[str, Any]:
    with logged(current().job):
        await asyncio.sleep(0.02 * random.random())
        return {"token": token}


@app.task("flaky", max_attempts=4, backoff=soon)
async def flaky(token: str) -> None:
    job = current().job
    with logged(job):
        dice = chance(job, token)
        await asyncio.sleep(0.05 * dice.random())
        misbehave(dice)


@app.task("slow", max_attempts=6, queue="side")
async def slow(token: str) -> None:
    job = current().job
    with logged(job):
        await asyncio.sleep(1 + 4 * chance(job, token).random())


@app.task("blocking", max_attempts=5, backoff=soon)
def blocking(token: str) -> str:
    job = akadze.sync.current().job
    with logged(job):
        dice = chance(job, token)
        time.sleep(0.05 * dice.random())
        if dice.random() < 0.2:
            misbehave(dice)
        return token


@app.task("pay", max_attempts=8, backoff=soon)
async def pay(token: str) -> None:
    context = current()
    with logged(context.job):
        async with context.complete_tx() as connection:
            await connection.execute(_EFFECT, {"job": context.job.id, "run": context.job.run_count})
            await asyncio.sleep(0.1 * random.random())
            if chance(context.job, token).random() < 0.2:
                raise RuntimeError("as planned, with its effect taken back")


@app.task("pay_blocking", max_attempts=8, backoff=soon)
def pay_blocking(token: str) -> None:
    context = akadze.sync.current()
    with logged(context.job), context.complete_tx() as connection:
        connection.execute(_EFFECT, {"job": context.job.id, "run": context.job.run_count})
        time.sleep(0.02)
        if chance(context.job, token).random() < 0.2:
            raise RuntimeError("as planned, with its effect taken back")


@app.periodic("tick", every=timedelta(seconds=SCHEDULES["tick"]))
async def tick() -> None:
    with logged(current().job):
        pass


@app.periodic("alone", every=timedelta(seconds=SCHEDULES["alone"]), overlap=False, max_attempts=9, backoff=soon)
async def alone() -> None:
    with logged(current().job):
        await asyncio.sleep(4 + 6 * random.random())


@app.periodic("minute", cron="* * * * *")
def minute() -> None:
    with logged(akadze.sync.current().job):
        pass
