"""Enqueue jobs, and interfere with them, until told to stop: `python -m soaking.producer async|sync SEED`.

What a transaction enqueues is logged before its commit, and after it whether it was committed; where the answer of the
commit was lost, that it is not known.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import akadze
import akadze.sync
from akadze import DuplicateJob
from soaking import log
from soaking.kinds import CHANGING, RATED, STEADY
from soaking.work import app

URL = os.environ["AKADZE_DATABASE_URL"]
_PATIENCE = 20  # seconds that a statement may hang before the connection is given up
_ARGUMENTS: dict[str, Any] = {
    "connect_timeout": _PATIENCE,
    "options": f"-c statement_timeout={_PATIENCE}s",
    "tcp_user_timeout": 8000,
}
_MOST_WAITING = 400
_TASKS = ["quick"] * 6 + ["flaky"] * 4 + ["blocking"] * 3 + ["pay"] * 3 + ["pay_blocking"] * 2 + ["slow"]

Call = tuple[str, dict[str, Any], list[str]]


class Plan:
    """What a producer does next, as the seed says."""

    def __init__(self, name: str, seed: str) -> None:
        self.dice = random.Random(f"{name} {seed}")
        self._name = name
        self._numbers = itertools.count()

    def transaction(self) -> tuple[list[Call], bool]:
        """Return what to enqueue: tasks, options and tokens; and whether to commit it."""
        return [self._call() for _ in range(self.dice.randint(1, 4))], self.dice.random() < 0.9

    def _call(self) -> Call:
        dice = self.dice
        options: dict[str, Any] = {"priority": dice.choice([0, 0, 0, 1, -1])}
        if dice.random() < 0.2:
            options["delay"] = timedelta(seconds=3 * dice.random())
        if dice.random() < 0.08:
            options["expires_at"] = datetime.now(UTC) + timedelta(seconds=6 * dice.random())
        if dice.random() < 0.3:
            options["limit_key"] = dice.choice([*STEADY, *STEADY, RATED[0], *CHANGING, "free"])
        task = dice.choice(_TASKS)
        count = 1
        if dice.random() < 0.15:
            options["unique_key"] = f"unique {dice.randrange(20)}"
        elif dice.random() < 0.05:
            count = dice.randint(0, 6)
        if task == "slow":
            options.pop("limit_key", None)
        return task, options, [f"{self._name} {os.getpid()} {next(self._numbers)}" for _ in range(count)]


def bound(session: Any, call: Call) -> Any:
    task, options, _ = call
    return app.tasks[task].using(session=session, **options)


class Transaction:
    """Tells the log what became of one."""

    def __init__(self, calls: list[Call]) -> None:
        self.tokens = [token for _, _, tokens in calls for token in tokens]
        self._committing = False
        log.write("intent", tokens=self.tokens)

    def duplicate(self, call: Call) -> None:
        for token in call[2]:
            self.tokens.remove(token)
        log.write("duplicate", tokens=call[2])

    def commits(self) -> None:
        self._committing = True

    def ends(self, committed: bool) -> None:
        log.write("committed" if committed else "rolled back", tokens=self.tokens)

    def breaks(self, error: Exception) -> None:
        log.write("unknown" if self._committing else "rolled back", tokens=self.tokens, error=type(error).__name__)


class RolledBack(Exception):
    pass


async def produce_async(plan: Plan, stopped: Callable[[], bool]) -> None:
    """On SQLAlchemy's async session and on psycopg's async connection, in turn."""
    engine = create_async_engine(URL.replace("postgresql:", "postgresql+psycopg:"), connect_args=_ARGUMENTS)
    while not stopped():
        calls, commit = plan.transaction()
        transaction = Transaction(calls)
        try:
            async with asyncio.timeout(_PATIENCE):
                if plan.dice.random() < 0.5:
                    async with AsyncSession(engine) as session:
                        await _enqueue_async(session, calls, transaction)
                        if commit:
                            transaction.commits()
                            await session.commit()
                else:
                    raw = await psycopg.AsyncConnection.connect(URL, **_ARGUMENTS)
                    async with raw:
                        await _enqueue_async(raw, calls, transaction)
                        if not commit:
                            await raw.rollback()
                        transaction.commits()
            transaction.ends(commit)
        except (DBAPIError, psycopg.Error, TimeoutError, OSError) as error:
            transaction.breaks(error)
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.3 * plan.dice.random())
    await engine.dispose()


async def _enqueue_async(session: Any, calls: list[Call], transaction: Transaction) -> None:
    for call in calls:
        try:
            if len(call[2]) == 1:
                await bound(session, call).enqueue(token=call[2][0])
            else:
                await bound(session, call).enqueue_many([{"token": token} for token in call[2]])
        except DuplicateJob:
            transaction.duplicate(call)


def produce_sync(plan: Plan, stopped: Callable[[], bool]) -> None:
    """On SQLAlchemy's session and on psycopg's connection, in turn; and interfere with jobs and limits."""
    engine = create_engine(URL.replace("postgresql:", "postgresql+psycopg:"), connect_args=_ARGUMENTS)
    while not stopped():
        calls, commit = plan.transaction()
        transaction = Transaction(calls)
        try:
            if plan.dice.random() < 0.5:
                with Session(engine) as session:
                    _enqueue_sync(session, calls, transaction)
                    if commit:
                        transaction.commits()
                        session.commit()
            else:
                with psycopg.connect(URL, **_ARGUMENTS) as raw:
                    _enqueue_sync(raw, calls, transaction)
                    if not commit:
                        raw.rollback()
                    transaction.commits()
            transaction.ends(commit)
        except (DBAPIError, psycopg.Error) as error:
            transaction.breaks(error)
            time.sleep(0.3)
        try:
            with psycopg.connect(URL, **_ARGUMENTS, autocommit=True) as raw:
                interfere(raw, plan.dice)
        except psycopg.Error as error:
            log.write("no interference", error=type(error).__name__)
        time.sleep(0.3 * plan.dice.random())
    engine.dispose()


def _enqueue_sync(session: Any, calls: list[Call], transaction: Transaction) -> None:
    for call in calls:
        try:
            if len(call[2]) == 1:
                bound(session, call).enqueue(token=call[2][0])
            else:
                bound(session, call).enqueue_many([{"token": token} for token in call[2]])
        except DuplicateJob:
            transaction.duplicate(call)


def interfere(raw: psycopg.Connection[Any], dice: random.Random) -> None:
    """Cancel, requeue, change limits, pause; wait where workers do not keep up."""
    what = dice.choice(["cancel", "cancel", "requeue", "limit", "unlimit", "pause", "resume", "resume", "hold", ""])
    jobs = akadze.sync.list_jobs(raw, state="failed" if what == "requeue" else None, limit=1000)
    waiting = sum(job.state == "queued" for job in jobs)
    if what in {"cancel", "hold"}:
        jobs = tuple(job for job in jobs if job.state in {"queued", "running"})
    job_id = dice.choice(jobs).id if jobs else None
    try:
        match what:
            case "cancel" if job_id is not None:
                akadze.sync.request_cancel(raw, job_id)
            case "requeue" if job_id is not None:
                akadze.sync.requeue(raw, job_id)
            case "limit":
                akadze.sync.set_limit(raw, dice.choice(CHANGING), max_running=dice.randint(0, 3))
            case "unlimit":
                akadze.sync.clear_limit(raw, dice.choice(CHANGING))
            case "pause":
                akadze.sync.pause_queue(raw, "side")
            case "resume":
                akadze.sync.resume_queue(raw, "side")
            case "hold" if job_id is not None:
                # A transaction that stays open on a job's row.
                with raw.transaction(force_rollback=dice.random() < 0.5):
                    akadze.sync.request_cancel(raw, job_id)
                    time.sleep(1.5 * dice.random())
            case _:
                what = ""
    except akadze.AkadzeError:
        what = f"{what} refused"
    if what:
        log.write("interfered", how=what, job=job_id)
    if waiting > _MOST_WAITING:
        time.sleep(1)


def main() -> None:
    colour, seed = sys.argv[1:]
    stopping, parent = False, os.getppid()

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)

    def stopped() -> bool:
        return stopping or os.getppid() != parent  # the soak was killed

    plan = Plan(colour, seed)
    if colour == "async":
        asyncio.run(produce_async(plan, stopped))
    else:
        produce_sync(plan, stopped)


if __name__ == "__main__":
    main()
