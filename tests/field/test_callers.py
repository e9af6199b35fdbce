"""Contract, sections 2, 3 and 12: enqueue in the transaction of a caller: what is the caller's stays so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import akadze.sync
import akadze.sync.testing
from akadze import Akadze, AkadzeError, DuplicateJob, EnqueueError, set_limit
from akadze.contrib.django import install
from akadze.job import Job
from akadze.task import Task
from akadze.testing import drain
from tests.connections import alchemy, drivers
from tests.connections.alchemy import Opener
from tests.connections.caller import Caller
from tests.connections.django_connection import django_connection
from tests.families import FULL
from tests.field.runs import MOST_NOTED
from tests.field.world import World
from tests.worker.table import SESSIONS, Table, enqueue


@asynccontextmanager
async def _async_psycopg(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield drivers.PsycopgAsyncCaller(connection)


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        yield drivers.PsycopgCaller(connection)


CALLERS: dict[str, Opener] = {
    "async connection": alchemy.async_connection("psycopg"),
    "async session": alchemy.async_session("psycopg"),
    "connection": alchemy.connection("psycopg"),
    "session": alchemy.session("psycopg"),
    "async psycopg": _async_psycopg,
    "psycopg": _psycopg,
    "django": django_connection,
}


@pytest.fixture
async def orders(table: Table) -> Table:
    """The caller's own table, `public.orders`."""
    await table.rows("create table public.orders (name text primary key)")
    return table


@pytest.fixture
def note(app: Akadze) -> Task[Any]:
    def note(n: int = 0) -> None: ...

    return app.register(note, name="note")


async def order(connection: AsyncConnection, name: str) -> None:
    await connection.execute(text("insert into public.orders values (:name)"), {"name": name})


async def names(table: Table) -> list[str]:
    return [row["name"] for row in await table.rows("select name from public.orders order by name")]


async def count(table: Table) -> int:
    return int(await table.value("select count(*) from akadze.jobs"))


async def test_b065_a_taken_key_leaves_the_callers_transaction_whole(
    app: Akadze, orders: Table, note: Task[Any]
) -> None:
    await enqueue(note, unique_key="o-1")

    async with app.engine.begin() as connection:
        await order(connection, "before")
        with pytest.raises(DuplicateJob):
            await note.using(session=connection, unique_key="o-1").enqueue()
        await order(connection, "after")

    assert await names(orders) == ["after", "before"]
    assert await count(orders) == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_b065_the_second_of_two_transactions_waits_for_the_end_of_the_first(
    app: Akadze, orders: Table, note: Task[Any], end: str
) -> None:
    async with app.engine.connect() as first, app.engine.connect() as second:
        await first.begin()
        await second.begin()
        await order(second, "second")
        await note.using(session=first, unique_key="new").enqueue(n=1)
        waiting = asyncio.create_task(note.using(session=second, unique_key="new").enqueue(n=2))
        await orders.until(f"select count(*) = 1 {SESSIONS} and wait_event_type = 'Lock'")
        assert not waiting.done()

        await getattr(first, end)()
        if end == "commit":
            with pytest.raises(DuplicateJob):
                await waiting
        else:
            await waiting
        await order(second, "second, later")
        await second.commit()

    assert await names(orders) == ["second", "second, later"]
    assert await orders.rows("select args from akadze.jobs") == [{"args": {"n": 1 if end == "commit" else 2}}]


@pytest.mark.parametrize("kind", CALLERS)
async def test_b066_a_taken_key_is_duplicate_job_on_every_kind_of_connection(
    database_url: str, table: Table, note: Task[Any], kind: str
) -> None:
    await enqueue(note, unique_key="o-1")

    async with CALLERS[kind](database_url) as caller:
        await caller.execute("select 0")
        for expected in (DuplicateJob, EnqueueError, AkadzeError):
            with pytest.raises(expected) as caught:
                await caller(lambda session: note.using(session=session, unique_key="o-1").enqueue())
            assert type(caught.value) is DuplicateJob
        assert await caller.execute("select 1") == [(1,)]
        await caller(lambda session: note.using(session=session, unique_key="o-2").enqueue())
        await caller.commit()

    assert await table.rows("select unique_key from akadze.jobs order by id") == [
        {"unique_key": "o-1"},
        {"unique_key": "o-2"},
    ]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = {"schema": "public"}  # noqa: RUF012 - as SQLAlchemy's documentation writes it
    name: Mapped[str] = mapped_column(primary_key=True)


async def test_b068_a_joined_session_is_not_committed(app: Akadze, orders: Table, note: Task[Any]) -> None:
    async with AsyncSession(app.engine) as session:
        u = Order(name="u")
        session.add(u)
        await note.using(session=session).enqueue()

        assert (await count(orders), await names(orders)) == (0, [])
        assert session.in_transaction()
        # Neither detached nor expired: reading an expired attribute would need a query, and be refused here.
        assert u in session
        assert u.name == "u"

        await session.rollback()
        assert (await count(orders), await names(orders)) == (0, [])

        session.add(Order(name="again"))
        await note.using(session=session).enqueue()
        await session.commit()
    assert (await count(orders), await names(orders)) == (1, ["again"])


@pytest.mark.parametrize("kind", ["async connection", "connection", "django"])
async def test_b070_a_drain_leaves_the_open_transaction_of_a_test_alone(
    app: Akadze, database_url: str, orders: Table, kind: str
) -> None:
    ran: list[int] = []
    task = app.register(_appending(ran), name="task")
    if kind == "django":
        install(app)  # with what closes Django's connections around runs

    async with CALLERS[kind](database_url) as caller:
        await caller.execute("insert into public.orders values ('before')")
        [(pid,)] = await caller.execute("select pg_backend_pid()")
        await caller(lambda session: task.using(session=session).enqueue(n=1))
        await _drain(caller, app)
        assert ran == []
        # The same connection, inside the same transaction.
        assert await caller.execute("select pg_backend_pid(), name from public.orders") == [(pid, "before")]
        assert await names(orders) == []

        await caller.commit()
        await _drain(caller, app)
        assert ran == [1]
    assert await names(orders) == ["before"]


async def test_b070_a_drain_on_djangos_connection_leaves_it_open_in_its_block(
    app: Akadze, database_url: str, orders: Table
) -> None:
    ran: list[int] = []
    task = app.register(_appending(ran), name="task")
    install(app)

    async with django_connection(database_url) as caller:
        [(pid,)] = await caller.execute("select pg_backend_pid()")
        await caller.execute("insert into public.orders values ('before')")
        await caller(lambda session: task.using(session=session).enqueue(n=1))
        await caller(lambda session: akadze.sync.testing.drain(app, session=session))
        assert ran == [1]
        assert await caller.execute("select pg_backend_pid(), name from public.orders") == [(pid, "before")]
        await caller.rollback()
    assert (await count(orders), await names(orders)) == (0, [])


def _appending(ran: list[int]) -> Any:
    def body(n: int) -> None:
        ran.append(n)

    return body


async def _drain(caller: Caller, app: Akadze) -> None:
    result = caller.calls.drain(app)
    if caller.calls.drain is drain:
        await result


async def test_b072_the_options_hold_for_each_of_many(app: Akadze, table: Table, note: Task[Any]) -> None:
    told: list[int] = []

    def hook(connection: Any, job: Job) -> None:
        told.append(job.args["n"])

    app.hooks.on_enqueue.append(hook)
    until_then = datetime.now(UTC) + timedelta(days=1)
    options: dict[str, Any] = {
        "delay": timedelta(hours=1),
        "priority": 7,
        "max_attempts": 9,
        "limit_key": "k",
        "expires_at": until_then,
        "meta": {"a": 1},
    }
    items = [{"n": n} for n in range(2500)]
    for given in (items, [], (item for item in items)):
        async with app.engine.begin() as connection:
            await note.using(session=connection, **options).enqueue_many(given)

    rows = await table.rows("select * from akadze.jobs order by id")
    assert [row["args"]["n"] for row in rows] == [*range(2500), *range(2500)]
    assert told == [*range(2500), *range(2500)]
    assert {
        (row["priority"], row["max_attempts"], row["limit_key"], row["expires_at"], str(row["meta"])) for row in rows
    } == {(7, 9, "k", until_then, "{'a': 1}")}
    assert {row["run_at"] - row["created_at"] for row in rows} == {timedelta(hours=1)}
    assert await table.value("select max(abs(extract(epoch from created_at - now()))) < 60 from akadze.jobs")


async def test_b072_a_unique_key_is_refused_for_many(app: Akadze, table: Table, note: Task[Any]) -> None:
    async with app.engine.begin() as connection:
        for items in ([{"n": 1}], [], [{"n": 1}, {"n": 2}]):
            with pytest.raises(EnqueueError, match="unique_key"):
                await note.using(session=connection, unique_key="u").enqueue_many(items)
    assert await count(table) == 0


#: Each so-many-th statement that changes jobs fails as one in a serializable transaction may.
_FAILURES = (
    "create sequence public.statements",
    """
    create function public.fail() returns trigger language plpgsql as $$
    begin
        if mod(nextval('public.statements'), 15) = 0 then
            raise exception 'could not serialize access' using errcode = 'serialization_failure';
        end if;
        return null;
    end $$
    """,
    "create trigger fail_at_times before update on akadze.jobs for each statement execute function public.fail()",
)


@pytest.fixture
def serializable(database_url: str) -> Iterator[None]:
    """Make new sessions of the database serializable ones."""
    with psycopg.connect(database_url, autocommit=True, application_name="test") as connection:
        database = sql.Identifier(connection.info.dbname)
        connection.execute(
            sql.SQL("alter database {} set default_transaction_isolation = 'serializable'").format(database)
        )
        yield
        connection.execute(sql.SQL("alter database {} reset all").format(database))


@FULL
@pytest.mark.heavy
@pytest.mark.parametrize("failing", [False, True], ids=["", "with serialization failures"])
@pytest.mark.usefixtures("serializable")
async def test_b073_a_serializable_database_keeps_jobs_single_and_limits_held(
    app: Akadze, world: World, full: bool, failing: bool
) -> None:
    source = """
    @app.task(name="task")
    async def body(key: str):
        note(f"start {key}")
        await asyncio.sleep(0.02)
        note(f"stop {key}")
    """

    @app.task("task")
    async def task(key: str) -> None: ...

    workers = [world.spawn(source, slots=5) for _ in range(3)]
    world.until("select count(*) = 3 from akadze.workers")
    if failing:
        for statement in _FAILURES:
            world.rows(statement)
    many = 300 if full else 60
    keys = ("a", "b")
    async with app.engine.begin() as connection:
        assert await connection.scalar(text("show transaction_isolation")) == "serializable"
        for key in keys:
            await set_limit(connection, key, max_running=2)
            await task.using(session=connection, limit_key=key).enqueue_many([{"key": key}] * (many // 2))

    world.until("select count(*) = %s from akadze.jobs where state = 'succeeded'", many)

    assert world.rows("select distinct run_count, attempt from akadze.jobs") == [{"run_count": 1, "attempt": 0}]
    assert world.rows(MOST_NOTED) == [{"key": key, "most": 2} for key in keys]
    assert {worker.returncode for worker in workers} == {None}
    if failing:
        assert world.value("select last_value > 15 from public.statements")
        world.rows("drop trigger fail_at_times on akadze.jobs")


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_b075_in_an_aborted_transaction_enqueue_raises_at_once_and_opens_no_other_connection(
    app: Akadze, table: Table, note: Task[Any], many: bool
) -> None:
    statements: list[str] = []
    connects: list[Any] = []
    async with app.engine.connect() as connection:
        await connection.begin()
        with pytest.raises(DBAPIError):
            await connection.execute(text("select 1 / 0"))
        event.listen(app.engine.sync_engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        event.listen(app.engine.sync_engine, "connect", lambda *given: connects.append(given))
        bound = note.using(session=connection)
        with pytest.raises(DBAPIError) as caught:
            await (bound.enqueue_many([{"n": 1}]) if many else bound.enqueue(n=1))
        assert isinstance(caught.value.orig, psycopg.errors.InFailedSqlTransaction)
        assert len(statements) == 1
        assert connects == []
        assert await table.value(f"select count(*) {SESSIONS}") == 1
        await connection.rollback()
    assert await count(table) == 0


async def test_b075_a_job_goes_and_stays_with_the_savepoint(app: Akadze, table: Table, note: Task[Any]) -> None:
    async with app.engine.begin() as connection:
        back = await connection.begin_nested()
        await note.using(session=connection).enqueue(n=1)
        await back.rollback()
    assert await count(table) == 0

    async with app.engine.begin() as connection:
        kept = await connection.begin_nested()
        await note.using(session=connection).enqueue(n=2)
        await kept.commit()
    assert await table.rows("select args from akadze.jobs") == [{"args": {"n": 2}}]


@pytest.mark.parametrize("bad", [{"n": "x"}, {}, 7, None, "n"], ids=["type", "missing", "int", "none", "str"])
async def test_b076_one_bad_item_of_many_leaves_no_job_and_the_callers_rows(
    app: Akadze, orders: Table, bad: Any
) -> None:
    def f(n: int) -> None: ...

    task = app.register(f, name="f")
    items: list[Mapping[str, Any]] = [{"n": n} for n in range(1500)]
    items[1400] = bad
    async with app.engine.begin() as connection:
        await order(connection, "own")
        with pytest.raises(EnqueueError, match="item 1400"):
            await task.using(session=connection).enqueue_many(items)

    assert await names(orders) == ["own"]
    assert await count(orders) == 0
