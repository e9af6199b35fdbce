"""Contract, section 2: what is no session of the call's colour gets an error that says what to pass instead."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.pool
import psycopg_pool
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from akadze import Akadze, AkadzeError, EnqueueError
from tests.connections.alchemy import url_for
from tests.connections.caller import ASYNC, SYNC

OTHER_OBJECTS = {
    "a string": "postgresql://localhost/app",
    "nothing": None,
    "a number": 7,
    "a class": Session,
    "a dict": {"session": 1},
}
NAMED = {
    "a string": "str",
    "nothing": "None",
    "a number": "int",
    "a class": "the class sqlalchemy.orm.session.Session",
    "a dict": "dict",
}

ENGINES = ["engine", "async engine", "asyncpg pool", "psycopg pool", "async psycopg pool", "psycopg2 pool"]
ASYNC_SESSIONS = ["async session", "async connection", "async psycopg", "asyncpg"]
SYNC_SESSIONS = ["session", "scoped session", "connection", "psycopg", "psycopg2"]


@pytest.fixture
async def objects(app: Akadze, database_url: str) -> AsyncIterator[SimpleNamespace]:
    """Everything that somebody may take for a session, open."""
    sqlite = create_engine("sqlite://")
    async with AsyncExitStack() as stack:
        given: dict[str, Any] = {
            "engine": app.sync_engine,
            "async engine": app.engine,
            "session": stack.enter_context(Session(app.sync_engine)),
            "scoped session": scoped_session(sessionmaker(app.sync_engine)),
            "connection": stack.enter_context(app.sync_engine.begin()),
            "async session": await stack.enter_async_context(AsyncSession(app.engine)),
            "async connection": await stack.enter_async_context(app.engine.begin()),
            "psycopg": stack.enter_context(psycopg.connect(database_url)),
            "async psycopg": await stack.enter_async_context(await psycopg.AsyncConnection.connect(database_url)),
            "psycopg2": psycopg2.connect(database_url),
            "asyncpg": await asyncpg.connect(database_url),
            "asyncpg pool": await stack.enter_async_context(asyncpg.create_pool(database_url, min_size=1, max_size=1)),
            "psycopg pool": stack.enter_context(psycopg_pool.ConnectionPool(database_url, min_size=1, max_size=1)),
            "async psycopg pool": psycopg_pool.AsyncConnectionPool(database_url, min_size=1, max_size=1, open=False),
            "psycopg2 pool": psycopg2.pool.ThreadedConnectionPool(1, 1, database_url),
            "sqlite session": stack.enter_context(Session(sqlite)),
            "sqlite connection": stack.enter_context(sqlite.begin()),
            "sqlite driver": sqlite3.connect(":memory:"),
        }
        yield SimpleNamespace(**given)
        given["scoped session"].remove()
        given["psycopg2"].close()
        given["psycopg2 pool"].closeall()
        given["sqlite driver"].close()
        await given["asyncpg"].close()
    sqlite.dispose()


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note")
    def note(n: int = 0) -> None: ...

    return note


def writing(calls: Any) -> list[Any]:
    """The calls that change something, and the one that drains on a session."""
    return [
        lambda given: calls.request_cancel(given, 1),
        lambda given: calls.requeue(given, 1),
        lambda given: calls.set_limit(given, "k", 1),
        lambda given: calls.clear_limit(given, "k"),
        lambda given: calls.pause_queue(given, "q"),
        lambda given: calls.resume_queue(given, "q"),
    ]


def reading(calls: Any) -> list[Any]:
    return [
        calls.list_jobs,
        calls.list_limits,
        calls.list_workers,
        calls.list_paused_queues,
        calls.queue_snapshot,
        calls.render_metrics,
    ]


async def refused(do: Any, given: Any) -> str:
    """Return the message of the AkadzeError with which the call refuses it."""
    with pytest.raises(AkadzeError) as caught:  # noqa: PT012 - a blocking call raises at once, another when awaited
        result = do(given)
        await result
    assert type(caught.value) is AkadzeError
    message = str(caught.value)
    assert message.count("\n") == 0
    return message


@pytest.mark.parametrize("name", ENGINES)
async def test_an_engine_or_a_pool_is_no_session_to_enqueue_on(objects: Any, note: Any, name: str) -> None:
    with pytest.raises(EnqueueError, match=r"open a connection|take a connection") as caught:
        note.using(session=getattr(objects, name))
    assert "part of your transaction" in str(caught.value)


@pytest.mark.parametrize("name", OTHER_OBJECTS)
async def test_anything_else_is_refused_with_all_that_can_be_passed(app: Akadze, note: Any, name: str) -> None:
    given = OTHER_OBJECTS[name]
    with pytest.raises(EnqueueError) as caught:
        note.using(session=given)
    assert str(caught.value).startswith(f"{NAMED[name]} cannot be used as a session here: pass ")
    for part in ("AsyncSession", "Session", "Django's connection", "asyncpg", "psycopg2"):
        assert part in str(caught.value)
    for calls, one in ((ASYNC, "AsyncSession"), (SYNC, "Django's connection")):
        for do in writing(calls):
            assert one in await refused(do, given)
        for do in reading(calls):
            message = await refused(do, given)
            assert one in message
            assert ("an AsyncEngine like app.engine" if calls is ASYNC else "an Engine like app.sync_engine") in message
    assert "localhost" not in str(caught.value)


@pytest.mark.parametrize("name", ENGINES)
async def test_an_engine_or_a_pool_changes_nothing(objects: Any, app: Akadze, name: str) -> None:
    for calls in (ASYNC, SYNC):
        for do in [*writing(calls), lambda given, calls=calls: calls.drain(app, session=given)]:
            assert "part of your transaction" in await refused(do, getattr(objects, name))


@pytest.mark.parametrize("name", SYNC_SESSIONS)
async def test_a_blocking_session_is_not_awaited(objects: Any, app: Akadze, name: str) -> None:
    for do in [*writing(ASYNC), *reading(ASYNC), lambda given: ASYNC.drain(app, session=given)]:
        assert "use the call of the same name in akadze.sync" in await refused(do, getattr(objects, name))


@pytest.mark.parametrize("name", ASYNC_SESSIONS)
async def test_an_async_session_is_no_session_for_a_blocking_call(objects: Any, app: Akadze, name: str) -> None:
    for do in [*writing(SYNC), *reading(SYNC), lambda given: SYNC.drain(app, session=given)]:
        assert "await the call of the same name in akadze" in await refused(do, getattr(objects, name))


@pytest.mark.parametrize("name", ["async engine", "async psycopg pool", "asyncpg pool"])
async def test_a_blocking_call_does_not_read_from_an_async_engine_or_pool(objects: Any, name: str) -> None:
    for do in reading(SYNC):
        assert "it is an async one: await the call of the same name" in await refused(do, getattr(objects, name))


@pytest.mark.parametrize("name", ["engine", "psycopg pool", "psycopg2 pool"])
async def test_an_async_call_does_not_read_from_a_blocking_engine_or_pool(objects: Any, name: str) -> None:
    for do in reading(ASYNC):
        assert "use the call of the same name in akadze.sync" in await refused(do, getattr(objects, name))


@pytest.mark.parametrize("name", ["sqlite session", "sqlite connection"])
async def test_a_session_of_another_database_is_refused(objects: Any, app: Akadze, note: Any, name: str) -> None:
    given = getattr(objects, name)
    with pytest.raises(EnqueueError, match=r"sqlite.*PostgreSQL"):
        note.using(session=given)
    for do in [*writing(SYNC), *reading(SYNC)]:
        assert "sqlite" in await refused(do, given)


async def test_a_sqlite_connection_of_its_own_driver_is_refused(objects: Any, note: Any) -> None:
    with pytest.raises(EnqueueError, match=r"sqlite3\.Connection"):
        note.using(session=getattr(objects, "sqlite driver"))


async def test_an_async_session_of_another_database_is_refused(note: Any, database_url: str) -> None:
    async with AsyncSession(create_async_engine(url_for("asyncpg", database_url))) as session:
        session.sync_session.bind = create_engine("sqlite://")
        with pytest.raises(EnqueueError, match="sqlite"):
            note.using(session=session)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_a_connection_outside_a_transaction_is_refused(note: Any, database_url: str, driver: str) -> None:
    engine = create_engine(url_for(driver, database_url))
    with engine.connect() as connection:
        with pytest.raises(EnqueueError, match=r"not in a transaction.*with engine.begin\(\)"):
            note.using(session=connection)
        with pytest.raises(AkadzeError, match=r"not in a transaction"):
            SYNC.set_limit(connection, "k", 1)
        connection.begin()
        note.using(session=connection).enqueue(n=1)
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_connection_outside_a_transaction_is_refused(note: Any, database_url: str, driver: str) -> None:
    engine = create_async_engine(url_for(driver, database_url))
    async with engine.connect() as connection:
        with pytest.raises(EnqueueError, match=r"not in a transaction.*async with engine.begin\(\)"):
            note.using(session=connection)
        with pytest.raises(AkadzeError, match=r"not in a transaction"):
            await ASYNC.set_limit(connection, "k", 1)
    await engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_connection_that_was_not_started_is_refused(
    app: Akadze, note: Any, database_url: str, driver: str
) -> None:
    engine = create_async_engine(url_for(driver, database_url))
    given = engine.connect()
    with pytest.raises(EnqueueError, match="has not been started: await it, or use async with"):
        note.using(session=given)
    for do in [*writing(ASYNC), *reading(ASYNC), lambda given: ASYNC.drain(app, session=given)]:
        assert "await it, or use async with" in await refused(do, given)
    async with given:
        assert not await ASYNC.list_jobs(given)
    await engine.dispose()


async def test_what_is_still_to_be_awaited_or_entered_is_refused_with_a_word_on_that(
    objects: Any, app: Akadze, note: Any, database_url: str
) -> None:
    connecting = psycopg.AsyncConnection.connect(database_url)
    for given, said in (
        (connecting, "await it and pass what that gives, or pass "),
        (app.engine.begin(), "enter it (async with ...) and pass what that gives, or pass "),
        (getattr(objects, "asyncpg pool").acquire(), "enter it (async with ...) and pass what that gives, or pass "),
        (app.sync_engine.begin(), "enter it (with ...) and pass what that gives, or pass "),
    ):
        with pytest.raises(EnqueueError) as caught:
            note.using(session=given)
        assert f"cannot be used as a session here: {said}" in str(caught.value)
        for calls in (ASYNC, SYNC):
            assert said in await refused(calls.list_jobs, given)
    connecting.close()
