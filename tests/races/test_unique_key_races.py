"""Contract, section 3: two transactions that want one unique key, in both colours of enqueue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from akadze import Akadze, DuplicateJob
from akadze.task import Task
from tests.claims.claiming import Claimer
from tests.claims.clients import Watcher
from tests.claims.fixtures import Connect
from tests.claims.line import Line

Enqueue = Callable[..., Coroutine[Any, Any, None]]


class Caller:
    """Somebody's open transaction, in one of the colours."""

    def __init__(self, enqueue: Enqueue, finish: Enqueue) -> None:
        self.enqueue = enqueue
        self._finish = finish

    async def commit(self) -> None:
        await self._finish("commit")

    async def rollback(self) -> None:
        await self._finish("rollback")


@asynccontextmanager
async def async_caller(task: Task[[]]) -> AsyncIterator[Caller]:
    async with task.app.engine.connect() as connection:
        await connection.begin()

        async def enqueue(**options: Any) -> None:
            await task.using(session=connection, **options).enqueue()

        async def finish(how: str) -> None:
            await getattr(connection, how)()

        yield Caller(enqueue, finish)


@asynccontextmanager
async def blocking_caller(task: Task[[]]) -> AsyncIterator[Caller]:
    connection = await asyncio.to_thread(task.app.sync_engine.connect)
    await asyncio.to_thread(connection.begin)

    async def enqueue(**options: Any) -> None:
        await asyncio.to_thread(lambda: task.using(session=connection, **options).enqueue())

    async def finish(how: str) -> None:
        await asyncio.to_thread(getattr(connection, how))

    try:
        yield Caller(enqueue, finish)
    finally:
        await asyncio.to_thread(connection.close)


MakeCaller = Callable[[], Awaitable[Caller]]
_COLOURS: dict[str, Callable[[Task[[]]], AbstractAsyncContextManager[Caller]]] = {
    "async": async_caller,
    "blocking": blocking_caller,
}


@pytest.fixture(params=_COLOURS)
async def make_caller(request: pytest.FixtureRequest, app: Akadze) -> AsyncIterator[MakeCaller]:
    async def body() -> None: ...

    task = app.register(body, name="work")
    async with AsyncExitStack() as stack:

        async def make() -> Caller:
            return await stack.enter_async_context(_COLOURS[request.param](task))

        yield make


async def keys(line: Line) -> list[tuple[str, str, bool]]:
    rows = await line.client.sql("select unique_key, state, expired from akadze.jobs order by id")
    return [(row["unique_key"], row["state"], row["expired"]) for row in rows]


async def test_the_second_of_two_open_transactions_waits_and_is_refused_when_the_first_commits(
    line: Line, make_caller: MakeCaller, watcher: Watcher
) -> None:
    first, second = await make_caller(), await make_caller()
    await first.enqueue(unique_key="u")
    waiting = await watcher.start_and_see_waiting(second.enqueue(unique_key="u"))

    await first.commit()
    with pytest.raises(DuplicateJob):
        await waiting

    # Its transaction is as good as before.
    await second.enqueue(unique_key="v")
    await second.commit()
    assert await keys(line) == [("u", "queued", False), ("v", "queued", False)]


async def test_the_second_of_two_open_transactions_gets_the_key_when_the_first_rolls_back(
    line: Line, make_caller: MakeCaller, watcher: Watcher
) -> None:
    first, second = await make_caller(), await make_caller()
    await first.enqueue(unique_key="u")
    waiting = await watcher.start_and_see_waiting(second.enqueue(unique_key="u"))

    await first.rollback()
    await waiting
    await second.commit()

    assert await keys(line) == [("u", "queued", False)]


async def test_other_keys_and_none_do_not_wait(line: Line, make_caller: MakeCaller) -> None:
    first, second = await make_caller(), await make_caller()
    await first.enqueue(unique_key="u")

    await second.enqueue(unique_key="v")
    await second.enqueue()
    await second.commit()

    await first.commit()
    assert len(await keys(line)) == 3


@pytest.mark.parametrize("death", [{"expires_after": -1}, {"cancel_after": -1}], ids=["expired", "cancelled"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_one_of_two_takes_the_key_of_a_dead_holder(
    line: Line, make_caller: MakeCaller, watcher: Watcher, death: dict[str, float], end: str
) -> None:
    await line.add(unique_key="u", **death)  # type: ignore[arg-type]  # options by name
    dead = ("u", "cancelled", "expires_after" in death)
    first, second = await make_caller(), await make_caller()
    await first.enqueue(unique_key="u")
    waiting = await watcher.start_and_see_waiting(second.enqueue(unique_key="u"))

    if end == "commit":
        await first.commit()
        with pytest.raises(DuplicateJob):
            await waiting
    else:
        await first.rollback()
        await waiting
    await second.commit()

    assert await keys(line) == [dead, ("u", "queued", False)]


async def test_a_taker_that_rolls_back_leaves_the_dead_holder_as_it_was(line: Line, make_caller: MakeCaller) -> None:
    await line.add(unique_key="u", expires_after=-1)
    first = await make_caller()
    await first.enqueue(unique_key="u")
    await first.rollback()

    assert await keys(line) == [("u", "queued", False)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_holder_that_is_being_claimed_keeps_its_key(
    line: Line, make_caller: MakeCaller, connect: Connect, watcher: Watcher, end: str
) -> None:
    await line.add(unique_key="u", expires_after=3600)
    claimer = Claimer(await connect())
    caller = await make_caller()

    await claimer.client.begin()
    assert len(await claimer.claim_plain(1)) == 1
    waiting = await watcher.start_and_see_waiting(caller.enqueue(unique_key="u"))
    await claimer.client.raw.execute(end)

    with pytest.raises(DuplicateJob):
        await waiting
    await caller.rollback()
    assert [state for _, state, _ in await keys(line)] == ["running" if end == "commit" else "queued"]


async def test_a_key_comes_free_with_the_commit_of_the_finish(
    line: Line, make_caller: MakeCaller, connect: Connect, watcher: Watcher
) -> None:
    await line.add(unique_key="u")
    claimer = Claimer(await connect())
    begun = await claimer.claim(1)
    caller = await make_caller()

    await claimer.client.begin()
    await claimer.finish(begun)
    waiting = await watcher.start_and_see_waiting(caller.enqueue(unique_key="u"))
    await claimer.client.commit()
    await waiting
    await caller.commit()

    assert await keys(line) == [("u", "succeeded", False), ("u", "queued", False)]


async def test_of_many_at_once_one_gets_the_key(line: Line, make_caller: MakeCaller) -> None:
    await line.add(unique_key="u", cancel_after=-1)
    callers = [await make_caller() for _ in range(4)]

    async def try_once(caller: Caller) -> bool:
        try:
            await caller.enqueue(unique_key="u")
        except DuplicateJob:
            return False
        finally:
            await caller.commit()
        return True

    assert sorted(await asyncio.gather(*[try_once(caller) for caller in callers])) == [False, False, False, True]
    assert [state for _, state, _ in await keys(line)] == ["cancelled", "queued"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_key_taken_after_the_snapshot_is_a_serialization_failure(app: Akadze, level: str) -> None:
    task = app.register(lambda: None, name="keyed")
    async with app.engine.connect() as opened:
        first = await opened.execution_options(isolation_level=level)
        await first.begin()
        await first.execute(text("select count(*) from akadze.jobs"))
        async with app.engine.begin() as second:
            await task.using(session=second, unique_key="k").enqueue()
        with pytest.raises(DBAPIError) as caught:
            await task.using(session=first, unique_key="k").enqueue()
        assert isinstance(caught.value.orig, psycopg.errors.SerializationFailure)
        # Run again, as for any such error, it tells of the holder.
        await first.rollback()
        await first.begin()
        with pytest.raises(DuplicateJob):
            await task.using(session=first, unique_key="k").enqueue()
