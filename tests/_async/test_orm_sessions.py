"""Contract, section 2: sessions of an ORM, which flush, expire and begin by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import AsyncConnection
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from akadze import Akadze, DuplicateJob, EnqueueError
from akadze.testing import drain
from tests.models import User

from .conftest import Engine, Rows
from .table import numbers


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note")
    def note(n: int) -> None: ...

    return note


@pytest.fixture(autouse=True)
async def users(rows: Rows) -> None:
    await rows("create table public.users (id serial primary key, name text not null)")


async def names(rows: Rows) -> list[str]:
    return [row["name"] for row in await rows("select name from public.users order by id")]


async def test_a_session_is_neither_committed_nor_closed(engine: Engine, note: Any, rows: Rows) -> None:
    async with AsyncSession(engine) as session:
        user = User(name="ada")
        session.add(user)
        await note.using(session=session).enqueue(n=1)
        assert session.in_transaction()
        assert await names(rows) == []
        assert await numbers(rows) == []
        assert user.name == "ada"
        await session.flush()
        assert user.id is not None

        await session.rollback()
        assert await names(rows) == []
        assert await numbers(rows) == []

        session.add(User(name="bob"))
        await note.using(session=session).enqueue(n=2)
        await session.commit()
    assert await names(rows) == ["bob"]
    assert await numbers(rows) == [2]


async def test_objects_that_were_loaded_stay_loaded(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    await rows("insert into public.users (name) values ('ada')")
    app.hooks.on_enqueue.append(lambda connection, job: None)
    async with AsyncSession(engine) as session:
        user = (await session.execute(select(User))).scalar_one()
        await note.using(session=session, unique_key="u").enqueue(n=1)
        with pytest.raises(DuplicateJob):
            await note.using(session=session, unique_key="u").enqueue(n=2)
        with pytest.raises(EnqueueError):
            await note.using(session=session).enqueue(n="x")
        assert user.name == "ada"
        user.name = "eve"
        await note.using(session=session).enqueue_many([{"n": 3}])
        await session.commit()
    assert await names(rows) == ["eve"]
    assert await numbers(rows) == [1, 3]


async def test_what_a_refusing_hook_added_is_gone_and_the_rest_stays(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    async def refuse(session: Any, job: Any) -> None:
        session.add(User(name="of the hook"))
        await session.flush()
        raise ZeroDivisionError

    app.hooks.on_enqueue.append(refuse)
    async with AsyncSession(engine) as session:
        session.add(User(name="ada"))
        with pytest.raises(ZeroDivisionError):
            await note.using(session=session).enqueue(n=1)
        session.add(User(name="bob"))
        await session.commit()
    assert sorted(await names(rows)) == ["ada", "bob"]
    assert await numbers(rows) == []


async def test_a_session_that_begins_by_a_block_works_too(engine: Engine, note: Any, rows: Rows) -> None:
    async with AsyncSession(engine) as session:
        async with session.begin():
            await note.using(session=session).enqueue(n=1)
        assert await numbers(rows) == [1]
        async with session.begin():
            await note.using(session=session).enqueue(n=2)
            await session.rollback()
    assert await numbers(rows) == [1]


@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only", "conditional_savepoint"])
async def test_a_session_joined_to_the_connection_of_a_test_keeps_all_in_its_transaction(
    mode: Any, engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    async with engine.connect() as connection:
        await connection.begin()
        async with AsyncSession(bind=connection, join_transaction_mode=mode) as session:
            session.add(User(name="ada"))
            await note.using(session=session, unique_key="u").enqueue(n=1)
            await session.commit()
            await note.using(session=session).enqueue(n=2)
            await drain(app, session=session)
            await session.commit()
        found = await connection.execute(text("select state from akadze.jobs order by id"))
        assert found.scalars().all() == ["succeeded", "succeeded"]
        await connection.rollback()
    assert await names(rows) == []
    assert await numbers(rows) == []


async def test_a_session_with_binds_by_table_enqueues_on_its_own(engine: Engine, note: Any, rows: Rows) -> None:
    async with AsyncSession(engine, binds={User: engine}) as session:
        session.add(User(name="ada"))
        await note.using(session=session).enqueue(n=1)
        await session.commit()
    assert await names(rows) == ["ada"]
    assert await numbers(rows) == [1]


async def test_an_enqueue_is_one_statement(engine: Engine, note: Any) -> None:
    seen: list[str] = []
    if True:  # ASYNC
        listened = engine.sync_engine
    else:
        listened = engine

    def count(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(listened, "before_cursor_execute", count)
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=1)
        await note.using(session=connection).enqueue_many({"n": n} for n in range(1000))
    event.remove(listened, "before_cursor_execute", count)
    assert len(seen) == 2


async def test_a_psycopg_block_in_autocommit_is_the_caller_s_transaction(
    database_url: str, note: Any, app: Akadze, rows: Rows
) -> None:
    async with await AsyncConnection.connect(database_url, autocommit=True) as connection:
        async with connection.transaction(force_rollback=True):
            await note.using(session=connection).enqueue(n=1)
        async with connection.transaction():
            await note.using(session=connection).enqueue(n=2)
            assert await numbers(rows) == []
        assert await numbers(rows) == [2]
        await note.using(session=connection).enqueue(n=3)
        assert await numbers(rows) == [2, 3]
