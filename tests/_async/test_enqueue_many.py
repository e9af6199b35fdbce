"""Contract, section 3: enqueue_many is all or nothing, in order, of any iterable."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from akadze import Akadze, EnqueueError
from akadze._async import bound

from .conftest import Engine, Rows
from .table import numbers

E = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note", queue="notes", priority=3, max_attempts=5)
    def note(n: int, more: str = "") -> None: ...

    return note


@pytest.fixture
async def orders(rows: Rows) -> None:
    await rows("create table public.orders (name text)")


async def test_every_job_gets_the_shared_options(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []
    app.hooks.on_enqueue.append(lambda connection, job: seen.append({"id": job.id, "n": job.args["n"]}))
    async with engine.begin() as connection:
        await note.using(
            session=connection, delay=timedelta(hours=1), priority=7, max_attempts=9, limit_key="k", expires_at=E,
            meta={"a": 1},
        ).enqueue_many({"n": n} for n in range(2500))  # fmt: skip
    assert await numbers(rows) == list(range(2500))
    assert seen == await rows("select id, args -> 'n' as n from akadze.jobs order by id")
    assert await rows(
        "select distinct task, queue, state, priority, max_attempts, limit_key, unique_key, expires_at, meta,"
        " run_at - created_at as delay from akadze.jobs"
    ) == [
        {
            "task": "note",
            "queue": "notes",
            "state": "queued",
            "priority": 7,
            "max_attempts": 9,
            "limit_key": "k",
            "unique_key": None,
            "expires_at": E,
            "meta": {"a": 1},
            "delay": timedelta(hours=1),
        }
    ]


async def test_jobs_start_as_their_task_says(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, run_at=E).enqueue_many([{"n": 1}, {"n": 2, "more": "m"}])
    assert await rows("select priority, max_attempts, meta, run_at, args from akadze.jobs order by id") == [
        {"priority": 3, "max_attempts": 5, "meta": {}, "run_at": E, "args": {"n": 1}},
        {"priority": 3, "max_attempts": 5, "meta": {}, "run_at": E, "args": {"n": 2, "more": "m"}},
    ]


def counted() -> Iterator[dict[str, int]]:
    yield {"n": 1}
    yield {"n": 2}


@pytest.mark.parametrize(
    "items",
    [
        [{"n": 1}, {"n": 2}],
        ({"n": 1}, {"n": 2}),
        {"a": {"n": 1}, "b": {"n": 2}}.values(),
        map(lambda n: {"n": n}, (1, 2)),  # noqa: C417 - one kind of iterable
        counted(),
        [OrderedDict(n=1), MappingProxyType({"n": 2})],
    ],
    ids=["list", "tuple", "view", "map", "generator", "other mappings"],
)
async def test_any_iterable_of_mappings_will_do(items: Any, app: Akadze, engine: Engine, rows: Rows) -> None:
    @app.task("note")
    def note(n: int) -> None: ...

    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many(items)
    assert await numbers(rows) == [1, 2]


@pytest.mark.parametrize("nothing", [[], (), {}, iter([])], ids=["list", "tuple", "dict", "iterator"])
async def test_no_items_are_no_jobs_and_no_error(nothing: Any, engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        assert await note.using(session=connection).enqueue_many(nothing) is None
    assert await numbers(rows) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"n": "x"}, "argument 'n'"),
        ({}, "argument 'n' is missing"),
        ({"n": 1, "no": 2}, "no parameter 'no'"),
        (7, "an int: each item is a mapping"),
        ([("n", 1)], "a mapping"),
        (None, "a mapping"),
        ({"n": 1, "more": "\0"}, "NUL"),
        ({"n": 1, "more": "\ud800"}, "surrogate"),
        ({1: 1}, "no parameter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_one_bad_item_leaves_no_job_and_the_transaction_usable(
    bad: Any, says: str, engine: Engine, note: Any, rows: Rows, orders: None
) -> None:
    items: list[Any] = [{"n": n} for n in range(1500)]
    items[1400] = bad
    async with engine.begin() as connection:
        await connection.execute(text("insert into public.orders (name) values ('own')"))
        with pytest.raises(EnqueueError, match=says) as raised:
            await note.using(session=connection).enqueue_many(items)
        await connection.execute(text("insert into public.orders (name) values ('after')"))
    assert "item 1400" in str(raised.value)
    assert await numbers(rows) == []
    assert await rows("select name from public.orders") == [{"name": "own"}, {"name": "after"}]


async def test_an_iterable_that_raises_leaves_no_job(engine: Engine, note: Any, rows: Rows) -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise ZeroDivisionError

    async with engine.begin() as connection:
        with pytest.raises(ZeroDivisionError):
            await note.using(session=connection).enqueue_many(broken())
        await connection.execute(text("select 1"))
    assert await numbers(rows) == []


@pytest.mark.parametrize(("nothing", "named"), [(None, "None"), (5, "an int"), (list, "a type")])
async def test_what_cannot_be_iterated_is_refused(
    nothing: Any, named: str, engine: Engine, note: Any, rows: Rows
) -> None:
    async with engine.begin() as connection:
        with pytest.raises(EnqueueError, match=f"^items is {named}: give a list of mappings, one for each job$"):
            await note.using(session=connection).enqueue_many(nothing)
        await note.using(session=connection).enqueue_many(Items())
    assert await numbers(rows) == [0, 1]


class Items:
    """An iterable by the old protocol, which has no __iter__."""

    def __getitem__(self, number: int) -> dict[str, int]:
        if number > 1:
            raise IndexError
        return {"n": number}


class Unready:
    def __iter__(self) -> Iterator[dict[str, int]]:
        raise TypeError("the caller's own")


async def test_an_error_of_the_items_own_comes_out_as_it_is(engine: Engine, note: Any, rows: Rows) -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise TypeError("the caller's own")

    async with engine.begin() as connection:
        for items in (broken(), Unready()):
            with pytest.raises(TypeError, match=r"^the caller's own$"):
                await note.using(session=connection).enqueue_many(items)
    assert await numbers(rows) == []


async def test_a_unique_key_is_for_one_job(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        for items in ([{"n": 1}], []):
            with pytest.raises(EnqueueError, match="unique_key applies to one job"):
                await note.using(session=connection, unique_key="u").enqueue_many(items)
        await note.using(session=connection, unique_key="").enqueue_many([{"n": 1}])
    assert await numbers(rows) == [1]


async def test_a_mapping_is_no_list_of_items(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        with pytest.raises(EnqueueError, match="items is a dict: give a list of mappings, one for each job"):
            await note.using(session=connection).enqueue_many({"n": 1})
        await connection.execute(text("select 1"))
    assert await numbers(rows) == []


async def test_in_autocommit_a_refusing_hook_leaves_none_of_the_jobs(
    database_url: str, note: Any, app: Akadze, rows: Rows
) -> None:
    def refuse(connection: Any, job: Any) -> None:
        if job.args["n"] == 2:
            raise ZeroDivisionError

    app.hooks.on_enqueue.append(refuse)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        with pytest.raises(ZeroDivisionError):
            await note.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}])
        assert await numbers(rows) == []
        await note.using(session=connection).enqueue_many([{"n": 1}, {"n": 3}])
        assert await numbers(rows) == [1, 3]


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("number", [3, bound._MANY], ids=["by a statement", "copied"])
async def test_a_row_that_the_database_refuses_takes_all_others_with_it(
    number: int, autocommit: bool, database_url: str, note: Any, rows: Rows
) -> None:
    await rows(f"alter table akadze.jobs add constraint not_the_last check (args -> 'n' <> to_jsonb({number - 1}))")
    try:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=autocommit) as connection:
            with pytest.raises(psycopg.errors.CheckViolation):
                await note.using(session=connection).enqueue_many({"n": n} for n in range(number))
            await connection.rollback()
            assert await numbers(rows) == []
            await note.using(session=connection).enqueue_many({"n": n} for n in range(number - 1))
    finally:
        await rows("alter table akadze.jobs drop constraint not_the_last")
    assert await numbers(rows) == list(range(number - 1))


async def test_ten_thousand_jobs_are_one_call(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many({"n": n, "more": "x" * 100} for n in range(10_000))
    assert await numbers(rows) == list(range(10_000))


async def test_arguments_that_are_too_much_for_one_statement_are_refused(
    engine: Engine, note: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes count, not characters: the limit is one of PostgreSQL."""
    monkeypatch.setattr(bound, "_MOST_BYTES", 1000)
    async with engine.begin() as connection:
        task = note.using(session=connection)
        await task.enqueue_many([{"n": 1, "more": "a" * 900}])
        for items in ([{"n": 2, "more": "a" * 500}] * 2, [{"n": 2, "more": "ž" * 600}]):
            with pytest.raises(EnqueueError, match="in several calls"):
                await task.enqueue_many(items)
        assert (await connection.execute(text("select 1"))).scalar() == 1
    assert await numbers(rows) == [1]


@pytest.mark.parametrize("count", [3, 2000])
async def test_an_argument_that_is_an_iterator_is_read_once(
    count: int, app: Akadze, engine: Engine, rows: Rows
) -> None:
    @app.task("numbers")
    def numbers(ns: list[int]) -> None: ...

    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    async with engine.begin() as connection:
        bound = numbers.using(session=connection)
        await bound.enqueue_many([{"ns": map(int, range(count))}, {"ns": iter([1, 2])}])
        for refused in ((n for n in [1, "bad", 3]), failing()):
            with pytest.raises(EnqueueError, match="item 1: task 'numbers'"):
                await bound.enqueue_many([{"ns": [1]}, {"ns": refused}])
    assert [row["args"] for row in await rows("select args from akadze.jobs order by id")] == [
        {"ns": list(range(count))},
        {"ns": [1, 2]},
    ]
