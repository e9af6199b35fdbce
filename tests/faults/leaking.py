"""An app whose jobs end in every way there is, with a secret in all that they touch.

The secret comes in as an argument: a traceback shows the source of a line, and there it must not stand.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import text

import akadze.sync
from akadze import Akadze, Cancel, Fail, Retry, Snooze, current
from akadze.job import Job

SECRET = "s3cret-of-the-user"

#: Ways to end, and the state that the job is in then.
WAYS = {
    "return": "succeeded",
    "raise": "failed",
    "raise with causes": "failed",
    "raise a group": "failed",
    "raise a base exception": "failed",
    "exit": "failed",
    "be cancelled": "failed",
    "time out": "failed",
    "fail": "failed",
    "cancel": "cancelled",
    "retry": "failed",
    "snooze": "succeeded",
    "return an object": "failed",
    "return a NUL": "failed",
    "return itself": "failed",
    "return nan": "failed",
    "break a statement": "failed",
    "break a transaction": "failed",
    "raise after complete_tx": "succeeded",
    "fail before": "failed",
    "fail after": "failed",
    "fail around": "failed",
    "refuse the move": "queued",
}


class BaseError(BaseException):
    pass


@dataclasses.dataclass
class Holder:
    held: Any


def end(how: str, secret: str) -> Any:
    """End in one of the ways that need no connection."""
    match how:
        case "raise":
            raise ValueError(secret)
        case "raise with causes":
            try:
                raise KeyError(secret)
            except KeyError as error:
                raise RuntimeError(f"with {secret}") from error
        case "raise a group":
            raise ExceptionGroup(secret, [ValueError(secret), KeyError(secret)])
        case "raise a base exception":
            raise BaseError(secret)
        case "exit":
            raise SystemExit(secret)
        case "be cancelled":
            raise asyncio.CancelledError(secret)
        case "fail":
            raise Fail(secret)
        case "cancel":
            raise Cancel(secret)
        case "retry":
            raise Retry(timedelta(0)) from ValueError(secret)
        case "snooze" if not current_job().snoozes:
            raise Snooze(timedelta(0)) from ValueError(secret)
        case "return an object":
            return Holder(type("Odd", (), {"__repr__": lambda self: secret})())
        case "return a NUL":
            return {"text": secret + "\0"}
        case "return itself":
            whole: list[Any] = [secret]
            whole.append(whole)
            return whole
        case "return nan":
            return {secret: float("nan")}
    return {"result": secret}


def current_job() -> Job:
    try:
        return current().job
    except akadze.AkadzeError:
        return akadze.sync.current().job


def backoff(attempt: int) -> timedelta:
    raise ValueError(SECRET)


def register(app: Akadze) -> None:
    """Register `leak`, an async task, and `leak_in_thread`, a plain one, and add hooks that raise for some ways."""

    async def leak(how: str, secret: str) -> Any:
        if how == "time out":
            await asyncio.sleep(600)
        if how == "break a statement":
            async with app.engine.begin() as connection:
                await connection.execute(text("select cast(:value as integer)"), {"value": secret})
        if how == "break a transaction":
            async with current().complete_tx() as connection:
                await connection.execute(text("select cast(:value as integer)"), {"value": secret})
        if how == "raise after complete_tx":
            async with current().complete_tx():
                pass
            raise ValueError(secret)
        return end(how, secret)

    def leak_in_thread(how: str, secret: str) -> Any:
        if how == "break a statement":
            with app.sync_engine.begin() as connection:
                connection.execute(text("select cast(:value as integer)"), {"value": secret})
        if how == "break a transaction":
            with akadze.sync.current().complete_tx() as connection:
                connection.execute(text("select cast(:value as integer)"), {"value": secret})
        if how == "raise after complete_tx":
            with akadze.sync.current().complete_tx():
                pass
            raise ValueError(secret)
        return end(how, secret)

    app.register(leak, name="leak", max_attempts=2, backoff=backoff, timeout=timedelta(seconds=1))
    app.register(leak_in_thread, name="leak_in_thread", max_attempts=2, backoff=backoff)

    async def before(job: Job) -> None:
        if job.args.get("how") == "fail before":
            raise ValueError(job.args["secret"])

    def after(job: Job) -> None:
        if job.args.get("how") == "fail after":
            raise ValueError(f"{job!r} {job.args}")

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        yield
        if job.args.get("how") == "fail around":
            raise ValueError(job.args["secret"])

    def watch(connection: Any, job: Job, old: str, new: str) -> None:
        if job.args.get("how") == "refuse the move":
            raise ValueError(f"{job!r} {job.args}")

    app.hooks.before_run.append(before)
    app.hooks.after_run.append(after)
    app.hooks.around_run.append(around)
    app.hooks.on_transition.append(watch)
