"""Contract, section 2: execution options that stream results are neither relied on nor changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from akadze import Akadze
from tests.connections import alchemy
from tests.connections.caller import Caller
from tests.connections.conftest import Rows, numbers
from tests.families import few
from tests.models import User

OPENERS: dict[str, Any] = {
    "async connection on psycopg": (alchemy.async_connection, "psycopg"),
    "async connection on asyncpg": (alchemy.async_connection, "asyncpg"),
    "connection on psycopg": (alchemy.connection, "psycopg"),
    "connection on psycopg2": (alchemy.connection, "psycopg2"),
    "async session on psycopg": (alchemy.async_session, "psycopg"),
    "async session on asyncpg": (alchemy.async_session, "asyncpg"),
    "session on psycopg": (alchemy.session, "psycopg"),
    "session on psycopg2": (alchemy.session, "psycopg2"),
}
STREAMING: dict[str, dict[str, Any]] = {
    "stream_results": {"stream_results": True},
    "yield_per": {"yield_per": 10},
    "both": {"stream_results": True, "yield_per": 10},
}


@pytest.fixture(params=few(STREAMING, kept=["both"]))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return STREAMING[request.param]


@pytest.fixture(params=OPENERS)
async def caller(
    request: pytest.FixtureRequest, options: dict[str, Any], database_url: str, rows: Rows
) -> AsyncIterator[Caller]:
    opener, driver = OPENERS[request.param]
    async with opener(driver, **options)(database_url) as caller:
        yield caller


async def options_of(session: Any) -> dict[str, Any]:
    if isinstance(session, AsyncSession):
        session = await session.connection()
    if isinstance(session, Session):
        session = session.connection()
    below = session.sync_connection if isinstance(session, AsyncConnection) else session
    assert isinstance(below, Connection)
    return dict(below.get_execution_options())


async def test_jobs_are_written_and_read(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=2))
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": n} for n in range(3, 301)]))
    assert len(await caller(lambda session: caller.calls.list_jobs(session, limit=1000))) == 300
    await caller.commit()
    assert numbers(rows) == list(range(1, 301))


async def test_hooks_and_requeue_have_their_savepoint(caller: Caller, note: Any, app: Akadze, rows: Rows) -> None:
    before = await options_of(caller.session)
    app.hooks.on_enqueue.append(caller.hook(lambda connection, job: [f"insert into orders values ('{job.args['n']}')"]))
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 2}, {"n": 3}]))
    await caller.execute("update akadze.jobs set state = 'failed'")
    await caller(lambda session: caller.calls.requeue(session, 1))
    assert await options_of(caller.session) == before
    await caller.commit()
    assert [row["name"] for row in rows("select name from orders order by name")] == ["1", "2", "3"]
    assert rows("select id from akadze.jobs where state = 'queued'") == [{"id": 1}]


async def test_a_hook_that_raises_leaves_no_row_and_all_else_as_it_was(
    caller: Caller, note: Any, app: Akadze, rows: Rows
) -> None:
    before = await options_of(caller.session)
    app.hooks.on_enqueue.append(caller.hook(lambda connection, job: ["insert into orders values ('x')", "select 1/0"]))
    with pytest.raises(Exception, match="division by zero"):
        await caller(lambda session: note.using(session=session).enqueue(n=1))
    assert await options_of(caller.session) == before
    app.hooks.on_enqueue.clear()
    await caller(lambda session: note.using(session=session).enqueue(n=2))
    await caller.commit()
    assert numbers(rows) == [2]
    assert rows("select name from orders") == []


async def test_objects_that_a_hook_has_added_leave_a_session_with_its_savepoint(
    options: dict[str, Any], note: Any, app: Akadze, rows: Rows, database_url: str
) -> None:
    rows("create table public.users (id serial primary key, name text not null)")

    def hook(session: Any, job: Any) -> None:
        user = User(name=f"of job {job.args['n']}")
        users.append(user)
        session.add(user)
        session.flush()
        if job.args["n"] == 2:
            raise ZeroDivisionError

    users: list[User] = []
    app.hooks.on_enqueue.append(hook)
    async with alchemy.session("psycopg", **options)(database_url) as caller:
        session: Session = caller.session
        note.using(session=session).enqueue(n=1)
        with pytest.raises(ZeroDivisionError):
            note.using(session=session).enqueue(n=2)
        assert [user in session for user in users] == [True, False]
        session.commit()
        assert session.scalars(select(User.name)).all() == ["of job 1"]
    assert numbers(rows) == [1]
