"""Contract, section 5: the connections that an exchange holds for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from akadze import Akadze
from akadze._urls import sqlalchemy_url
from tests.claims.exchanges import MakeExchange, Way
from tests.claims.fixtures import Connect
from tests.waiting import until

_HELD = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'held'"


@pytest.fixture
async def app(anyio_backend: str, database_url: str) -> AsyncIterator[Akadze]:
    """An app whose engine has room for one connection, and names it."""
    engine = create_async_engine(
        sqlalchemy_url(database_url),
        pool_size=1,
        max_overflow=0,
        pool_timeout=5,
        connect_args={"application_name": "held", "prepare_threshold": None},
    )
    yield Akadze(engine=engine)
    await engine.dispose()


async def test_an_exchange_connects_as_the_engine_does_and_takes_nobodys_place_in_its_pool(
    app: Akadze, make_exchange: MakeExchange, connect: Connect, way: Way
) -> None:
    client = await connect()
    exchange = await make_exchange()
    await exchange.exchange([], {"default": 1})
    assert await client.value(_HELD) == (2 if way is Way.HOOKS else 1)

    async with app.engine.connect() as connection:
        assert not connection.closed


async def test_an_exchange_that_gives_up_closes_what_it_had_opened_and_opens_it_anew(
    make_exchange: MakeExchange, connect: Connect
) -> None:
    client = await connect()
    exchange = await make_exchange()
    await exchange.exchange([], {"default": 1})

    async def closed() -> bool:
        return bool(await client.value(_HELD) == 0)

    await exchange.give_up()
    await until(closed)

    await exchange.exchange([], {"default": 1})
    assert not await closed()
