"""Each test has a transaction, in which the requests, the tables and the jobs live. It is rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from httpx import ASGITransport, AsyncClient
from models import Base, Product
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from web import open_session, web

from akadze import Akadze
from akadze.pytest_plugin import AsyncJobs


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def connection(akadze_app: Akadze) -> AsyncIterator[AsyncConnection]:
    async with akadze_app.engine.connect() as connection:
        transaction = await connection.begin()
        await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session, session.begin():
            session.add(Product(name="lamp", stock=1))
        yield connection
        await transaction.rollback()


@pytest.fixture
def jobs(akadze_async_jobs: AsyncJobs, connection: AsyncConnection) -> AsyncJobs:
    return akadze_async_jobs.on(connection)


@pytest.fixture
async def client(connection: AsyncConnection) -> AsyncIterator[AsyncClient]:
    async def session_of_the_test() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session, session.begin():
            yield session

    web.dependency_overrides[open_session] = session_of_the_test
    async with AsyncClient(transport=ASGITransport(web), base_url="http://shop") as client:
        yield client
    web.dependency_overrides.clear()
