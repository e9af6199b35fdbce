"""Sessions of SQLAlchemy, and of the packages that build on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import flask
import flask_sqlalchemy
import sqlmodel
import sqlmodel.ext.asyncio.session
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.connections.caller import SYNC, AsyncCaller, Caller, Row, SyncCaller

Opener = Callable[[str], AbstractAsyncContextManager[Caller]]
#: Options of one statement that undo those of an engine.
WHOLE = {"stream_results": False, "yield_per": None}


def url_for(driver: str, url: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def _tuples(result: Any) -> list[Row]:
    return [tuple(row) for row in result] if result.returns_rows else []


class AlchemyAsync(AsyncCaller):
    async def _execute(self, statement: str) -> list[Row]:
        # Past SQLModel, whose own execute() warns.
        run = AsyncSession.execute if isinstance(self.session, AsyncSession) else type(self.session).execute
        return _tuples(await run(self.session, text(statement), execution_options=WHOLE))

    @property
    def given(self) -> Any:
        return self.session() if isinstance(self.session, async_scoped_session) else self.session


class AlchemySync(SyncCaller):
    def _execute(self, statement: str) -> list[Row]:
        session = self.given
        run = Session.execute if isinstance(session, Session) else type(session).execute
        return _tuples(run(session, text(statement), execution_options=WHOLE))

    @property
    def given(self) -> Any:
        return self.session() if isinstance(self.session, scoped_session) else self.session


class AlchemyAsyncConnection(AlchemyAsync):
    """A connection does not begin by itself where enqueue asks for a transaction: it is begun again."""

    async def commit(self) -> None:
        await super().commit()
        await self.session.begin()

    async def rollback(self) -> None:
        await super().rollback()
        await self.session.begin()


class AlchemyConnection(AlchemySync):
    async def commit(self) -> None:
        await super().commit()
        self.session.begin()

    async def rollback(self) -> None:
        await super().rollback()
        self.session.begin()


class StreamingConnection(AlchemyConnection):
    """SQLAlchemy's own savepoint fails on psycopg2 where results are streamed, so the caller writes its own."""

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._execute("savepoint mine")
        try:
            yield
        except BaseException:
            self._execute("rollback to savepoint mine")
            raise
        self._execute("release savepoint mine")


class InRunSync(AlchemySync):
    """The blocking session below an AsyncSession, used where ``run_sync`` lets it be used."""

    calls = SYNC

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session.sync_session)
        self._above = session

    async def __call__(self, do: Callable[[Any], Any]) -> Any:
        return await self._above.run_sync(do)

    async def execute(self, statement: str) -> list[Row]:
        return await self._above.run_sync(lambda _: self._execute(statement))

    async def commit(self) -> None:
        await self._above.commit()

    async def rollback(self) -> None:
        await self._above.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        block: AbstractAsyncContextManager[None] = self._above.begin_nested()
        return block


def async_connection(driver: str, **options: Any) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(url_for(driver, url), execution_options=options)
        async with engine.connect() as connection:
            await connection.begin()
            yield AlchemyAsyncConnection(connection)
        await engine.dispose()

    return opened


def connection(driver: str, caller: type[AlchemyConnection] = AlchemyConnection, **options: Any) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_engine(url_for(driver, url), execution_options=options)
        with engine.connect() as connection:
            connection.begin()
            yield caller(connection)
        engine.dispose()

    return opened


def async_session(
    driver: str, kind: type[AsyncSession] = AsyncSession, caller: type[Any] = AlchemyAsync, **options: Any
) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(url_for(driver, url), execution_options=options)
        async with kind(engine) as session:
            yield caller(session)
        await engine.dispose()

    return opened


def session(driver: str, kind: type[Session] = Session, **options: Any) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_engine(url_for(driver, url), execution_options=options)
        with kind(engine) as session:
            yield AlchemySync(session)
        engine.dispose()

    return opened


def async_scoped(driver: str) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(url_for(driver, url))
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "one request")
        yield AlchemyAsync(scoped)
        await scoped.remove()
        await engine.dispose()

    return opened


def scoped(driver: str) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_engine(url_for(driver, url))
        scoped = scoped_session(sessionmaker(engine))
        yield AlchemySync(scoped)
        scoped.remove()
        engine.dispose()

    return opened


def of_flask(driver: str) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        web = flask.Flask(__name__)
        web.config["SQLALCHEMY_DATABASE_URI"] = url_for(driver, url)
        db = flask_sqlalchemy.SQLAlchemy(web)
        with web.app_context():
            yield AlchemySync(db.session)
            db.session.remove()
            db.engine.dispose()

    return opened


def of_sqlmodel(driver: str) -> Opener:
    return session(driver, sqlmodel.Session)


def of_async_sqlmodel(driver: str) -> Opener:
    return async_session(driver, sqlmodel.ext.asyncio.session.AsyncSession)
