"""Async task bodies for tests of both colours: a twin cannot hold an async function."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from sqlalchemy import text

import akadze
from akadze import Akadze

#: What a cancelled asyncio task raises, for tests whose twin must not name asyncio.
CancelledError = asyncio.CancelledError


def coroutine_task(app: Akadze, ran: list[Any]) -> Any:
    @app.task("coroutine")
    async def coroutine(n: int = 0) -> int:
        ran.append(n)
        return n

    return coroutine


def raising_task(app: Akadze, error: BaseException) -> Any:
    @app.task("raising", max_attempts=1)
    async def raising() -> None:
        raise error

    return raising


def self_cancelling_task(app: Akadze, *, waits: bool) -> Any:
    """A task that cancels itself, and then waits, where it learns of it, or returns before it can."""

    @app.task("cancelling", max_attempts=1)
    async def cancelling() -> int:
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        if waits:
            await asyncio.sleep(0)
        return 7

    return cancelling


def completing_task(app: Akadze, *, error: Exception | None = None) -> Any:
    """A task that writes one row in its complete_tx block, and then raises ``error`` in it if there is one."""

    @app.task("completing", max_attempts=1)
    async def completing(queue: str) -> str:
        async with akadze.current().complete_tx() as connection:
            await connection.execute(
                text("insert into akadze.queue_pauses (queue) values (cast(:queue as text))"), {"queue": queue}
            )
            if error is not None:
                raise error
        return "not stored"

    return completing


def sleeping_task(app: Akadze) -> Any:
    @app.task("sleeping", max_attempts=1, timeout=timedelta(milliseconds=50))
    async def sleeping() -> None:
        await asyncio.sleep(600)

    return sleeping
