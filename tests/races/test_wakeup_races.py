"""Contract, section 5: jobs that arrive while a worker goes to sleep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from akadze import Akadze
from akadze._worker.exchange import Exchange
from akadze._worker.loop import Loop
from akadze.task import Task
from tests.claims.clients import Client
from tests.claims.fixtures import Connect
from tests.waiting import until
from tests.worker.serving import Serve, workers
from tests.worker.table import Table, open_table

#: Seconds between two looks of an idle worker: longer than any test.
_NEVER = 3600


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[Table]:
    async with open_table(database_url) as table:
        yield table


@pytest.fixture
async def serve(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    async with workers(app, table) as serve:
        yield serve


@pytest.fixture
def task(app: Akadze) -> Task[[]]:
    async def body() -> None: ...

    return app.register(body, name="work")


@pytest.fixture
async def caller(connect: Connect) -> Client:
    return await connect()


class Listener:
    """Hears the notifications of enqueues."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._heard: list[str] = []
        client.raw.add_notify_handler(lambda notification: self._heard.append(notification.payload))

    async def heard(self) -> list[str]:
        """What has been notified so far, but for the tests that workers make of their own listening."""
        await self._client.value("select 1")
        return [payload for payload in self._heard if not payload.startswith("akadze.test")]


@pytest.fixture
async def listener(connect: Connect) -> Listener:
    client = await connect()
    await client.sql("listen akadze")
    return Listener(client)


async def once(table: Table) -> str:
    """The state of the only job."""
    return str(await table.value("select state from akadze.jobs"))


def after(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, call: Callable[[], Awaitable[None]]) -> None:
    """Call ``call`` when the method was called for the first time with ``True`` or without arguments."""
    original = getattr(kind, method)
    called = False

    async def wrapped(self: Any, *arguments: Any) -> Any:
        nonlocal called
        result = await original(self, *arguments)
        if not called and all(arguments):
            called = True
            await call()
        return result

    monkeypatch.setattr(kind, method, wrapped)


async def test_a_job_that_commits_when_the_worker_has_just_said_that_it_sleeps_is_found_at_once(
    table: Table,
    serve: Serve,
    task: Task[[]],
    caller: Client,
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its enqueue has seen nobody asleep, so it notifies nobody: the worker has to look once more."""
    after(monkeypatch, Exchange, "set_sleeping", caller.commit)
    await caller.begin()
    await task.using(session=caller.raw).enqueue()

    await serve(poll_interval=_NEVER)

    async def succeeded() -> bool:
        return await once(table) == "succeeded"

    await until(lambda: table.value("select count(*) from akadze.jobs"))
    await until(succeeded)
    assert await listener.heard() == []


async def test_a_job_that_commits_after_the_last_look_is_found_by_the_next_poll(
    table: Table,
    serve: Serve,
    task: Task[[]],
    caller: Client,
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asleep = asyncio.Event()
    sleep = Loop._sleep

    async def sleeping(self: Loop) -> None:
        if self._asleep and not asleep.is_set():
            await caller.commit()
            asleep.set()
        await sleep(self)

    monkeypatch.setattr(Loop, "_sleep", sleeping)
    await caller.begin()
    await task.using(session=caller.raw).enqueue()
    await serve(poll_interval=0.3)

    async def succeeded() -> bool:
        return asleep.is_set() and await once(table) == "succeeded"

    await until(succeeded)
    assert await listener.heard() == []


async def test_a_job_that_is_enqueued_while_the_worker_sleeps_wakes_it(
    table: Table, serve: Serve, task: Task[[]], caller: Client, listener: Listener
) -> None:
    await serve(poll_interval=_NEVER)
    await until(lambda: table.value("select bool_or(sleeping) from akadze.workers"))

    await caller.begin()
    await task.using(session=caller.raw).enqueue()
    assert await listener.heard() == []
    await caller.commit()

    async def succeeded() -> bool:
        return await once(table) == "succeeded"

    await until(succeeded)
    assert await listener.heard() == ["default"]


async def test_a_notification_that_comes_while_the_worker_looks_is_not_forgotten(
    table: Table, serve: Serve, task: Task[[]], caller: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has found nothing and its answer is on its way when the job commits and wakes the worker."""
    armed = asyncio.Event()
    exchange = Exchange.exchange

    async def slow(self: Exchange, outcomes: Any, free: Any) -> Any:
        answer = await exchange(self, outcomes, free)
        if armed.is_set() and not answer.rows and not await table.value("select count(*) from akadze.jobs"):
            await task.using(session=caller.raw).enqueue()
            # Long enough for the notification to come while this exchange is still under way.
            await until(lambda: woken.is_set())
        return answer

    woken = asyncio.Event()
    wake = Loop.wake

    def waking(self: Loop) -> None:
        wake(self)
        if armed.is_set():
            woken.set()

    monkeypatch.setattr(Exchange, "exchange", slow)
    monkeypatch.setattr(Loop, "wake", waking)
    worker = await serve(poll_interval=_NEVER)
    await until(lambda: table.value("select bool_or(sleeping) from akadze.workers"))
    armed.set()
    await caller.sql("notify akadze, 'default'")

    async def succeeded() -> bool:
        return await once(table) == "succeeded"

    await until(succeeded)
    assert worker.up
