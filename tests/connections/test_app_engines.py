"""Contract, section 1: the engines of an app, which serve both colours and close only what they made."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from akadze import Akadze, AkadzeError, list_jobs, sync
from akadze.testing import drain

PREPARED = text("select count(*) from pg_prepared_statements")


def with_scheme(url: str, scheme: str) -> str:
    return re.sub(r"^[\w+]+://", f"{scheme}://", url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
async def test_one_url_serves_both_colours(scheme: str, database_url: str) -> None:
    app = Akadze(database_url=with_scheme(database_url, scheme))
    task = app.register(lambda: None, name="t")
    async with app.engine.begin() as connection:
        await task.using(session=connection).enqueue()
    with app.sync_engine.begin() as blocking:
        task.using(session=blocking).enqueue()
    assert len(await list_jobs(app.engine)) == len(sync.list_jobs(app.sync_engine)) == 2
    assert app.engine.dialect.driver == app.sync_engine.dialect.driver == "psycopg"
    await drain(app)
    await app.aclose()


async def test_no_statement_is_prepared_on_the_server(app: Akadze, database_url: str) -> None:
    task = app.register(lambda n: None, name="t")
    async with app.engine.begin() as connection:
        for n in range(20):
            await task.using(session=connection).enqueue(n=n)
        assert (await connection.execute(PREPARED)).scalar() == 0
    with app.sync_engine.begin() as blocking:
        for n in range(20):
            task.using(session=blocking).enqueue(n=n)
        assert blocking.execute(PREPARED).scalar() == 0


async def test_engines_that_were_passed_in_are_used_and_stay_open(database_url: str) -> None:
    engine = create_async_engine(with_scheme(database_url, "postgresql+psycopg"))
    blocking = create_engine(with_scheme(database_url, "postgresql+psycopg"))
    app = Akadze(engine=engine, sync_engine=blocking)
    assert app.engine is engine
    assert app.sync_engine is blocking
    task = app.register(lambda: None, name="t")
    async with app.engine.begin() as connection:
        await task.using(session=connection).enqueue()
    with app.sync_engine.begin() as other:
        task.using(session=other).enqueue()
    await app.aclose()
    assert engine.pool.checkedin() == 1  # type: ignore[attr-defined]  # of a queue pool
    assert blocking.pool.checkedin() == 1  # type: ignore[attr-defined]  # of a queue pool
    await engine.dispose()
    blocking.dispose()


async def test_closing_an_app_closes_both_engines_that_it_made(app: Akadze) -> None:
    async with app.engine.connect():
        pass
    with app.sync_engine.connect():
        pass
    assert app.engine.pool.checkedin() == app.sync_engine.pool.checkedin() == 1  # type: ignore[attr-defined]  # of queue pools
    await app.aclose()
    assert app.engine.pool.checkedin() == app.sync_engine.pool.checkedin() == 0  # type: ignore[attr-defined]  # of queue pools


async def test_asyncpg_keeps_no_statements_of_its_own_on_the_server(database_url: str) -> None:
    app = Akadze(database_url=with_scheme(database_url, "postgresql+asyncpg"))
    assert app.engine.dialect.driver == "asyncpg"
    async with app.engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        prepared = await driver.fetchval(PREPARED.text)
        await driver.fetchval("select 'of this test'")
        assert await driver.fetchval(PREPARED.text) == prepared
    await app.aclose()


async def test_the_blocking_engine_of_a_shared_async_one_is_made_when_it_is_asked_for(database_url: str) -> None:
    engine = create_async_engine(with_scheme(database_url, "postgresql+psycopg"))
    app = Akadze(engine=engine)
    assert isinstance(app.sync_engine, Engine)
    assert app.sync_engine is app.sync_engine
    with app.sync_engine.connect() as blocking:
        assert blocking.execute(text("select current_database()")).scalar() == engine.url.database
    await app.aclose()
    assert app.sync_engine.pool.checkedin() == 0  # type: ignore[attr-defined]  # of a queue pool
    await engine.dispose()


async def test_the_pool_of_an_app_s_own_engines_has_the_size_that_was_asked_for(database_url: str) -> None:
    app = Akadze(database_url=database_url, pool_size=7)
    assert app.engine.pool.size() == app.sync_engine.pool.size() == 7  # type: ignore[attr-defined]  # of queue pools
    await app.aclose()


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
async def test_a_pool_has_five_connections_and_ten_more_where_no_size_was_asked_for(
    scheme: str, database_url: str
) -> None:
    app = Akadze(database_url=with_scheme(database_url, scheme))
    async with AsyncExitStack() as stack:
        for _ in range(5 + 10):
            await stack.enter_async_context(app.engine.connect())
            stack.enter_context(app.sync_engine.connect())
        for pool in (app.engine.pool, app.sync_engine.pool):
            assert (pool.size(), pool.overflow()) == (5, 10)  # type: ignore[attr-defined]  # of queue pools
        # The next one waits: in short, since nobody gives one back.
        for engine in (app.engine.sync_engine, app.sync_engine):
            engine.pool._timeout = 0.01  # type: ignore[attr-defined]  # of a queue pool
        with pytest.raises(NoConnectionLeft, match="size 5 overflow 10"):
            await stack.enter_async_context(app.engine.connect())
        with pytest.raises(NoConnectionLeft, match="size 5 overflow 10"):
            stack.enter_context(app.sync_engine.connect())
    await app.aclose()


ENGINE = create_async_engine("postgresql+psycopg://nobody@nowhere.invalid/none")
BLOCKING = create_engine("postgresql+psycopg://nobody@nowhere.invalid/none")
URL = "postgresql://nobody:s3cret@nowhere.invalid/none"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of engine and database_url"),
        ({"engine": ENGINE, "database_url": URL}, "one of engine and database_url"),
        ({"engine": BLOCKING}, "create_async_engine"),
        ({"engine": URL}, "create_async_engine"),
        ({"database_url": URL, "sync_engine": ENGINE}, "create_engine"),
        ({"database_url": URL, "sync_engine": create_engine("sqlite://")}, "sqlite"),
        ({"engine": ENGINE, "pool_size": 5}, "pool"),
        ({"database_url": URL, "pool_size": 0}, "pool_size"),
        ({"database_url": URL, "pool_size": -(10**5000)}, "pool_size"),
        ({"database_url": URL, "pool_size": True}, "pool_size"),
        ({"database_url": URL, "grace": timedelta(0)}, "grace"),
        ({"database_url": URL, "retention": 60}, "retention"),
        ({"database_url": 7}, "database_url|str"),
        ({"database_url": ""}, "URL"),
        ({"database_url": "mysql://nobody:s3cret@nowhere.invalid/none"}, "mysql"),
        ({"database_url": "postgresql://nobody:s3cret@nowhere.invalid:port/none"}, "port"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_app_that_cannot_work_is_refused_when_it_is_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(AkadzeError, match=says) as raised:
        Akadze(**options)
    assert "s3cret" not in str(raised.value)


def test_nothing_connects_before_it_is_used() -> None:
    app = Akadze(database_url=URL)
    app.register(lambda: None, name="t")
    assert isinstance(app.engine, AsyncEngine)
    assert isinstance(app.sync_engine, Engine)
    assert "s3cret" not in repr(app.engine.url)


async def test_an_error_of_an_engine_that_the_app_made_shows_no_arguments(app: Akadze) -> None:
    broken = text("select cast(:secret as integer), nothing from nowhere")
    for engine in (app.engine.sync_engine, app.sync_engine):
        assert engine.hide_parameters
    with pytest.raises(ProgrammingError) as caught:
        async with app.engine.begin() as connection:
            await connection.execute(broken, {"secret": "a secret"})
    assert "a secret" not in str(caught.value)


def test_a_driver_that_is_not_installed_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(AkadzeError, match="install it"):
        Akadze(database_url="postgresql+asyncpg://localhost/akadze_test")
