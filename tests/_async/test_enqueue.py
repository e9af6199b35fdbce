"""Contract, section 3: what one enqueue stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pydantic
import pytest
from sqlalchemy import text

from akadze import Akadze, EnqueueError

from .conftest import Engine, Rows
from .table import numbers


class Colour(StrEnum):
    RED = "red"


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note", queue="notes", priority=3, max_attempts=5)
    def note(n: int = 0) -> None: ...

    return note


async def only(rows: Rows, columns: str) -> dict[str, Any]:
    [row] = await rows(f"select {columns} from akadze.jobs")
    return row


async def test_a_job_starts_as_its_task_says(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        assert await note.using(session=connection).enqueue(n=1) is None
    assert await only(
        rows,
        "task, queue, priority, max_attempts, state, args, meta, run_count, attempt, snoozes, errors, result,"
        " unique_key, limit_key, worker_id, started_at, finished_at, expires_at, cancel_requested_at, expired,"
        " run_at = created_at and run_at <= now() as due",
    ) == {
        "task": "note",
        "queue": "notes",
        "priority": 3,
        "max_attempts": 5,
        "state": "queued",
        "args": {"n": 1},
        "meta": {},
        "run_count": 0,
        "attempt": 0,
        "snoozes": 0,
        "errors": [],
        "result": None,
        "unique_key": None,
        "limit_key": None,
        "worker_id": None,
        "started_at": None,
        "finished_at": None,
        "expires_at": None,
        "cancel_requested_at": None,
        "expired": False,
        "due": True,
    }


async def test_options_of_using_override_those_of_the_task(engine: Engine, note: Any, rows: Rows) -> None:
    until = datetime(2040, 5, 6, 7, 8, 9, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    async with engine.begin() as connection:
        await note.using(
            session=connection,
            priority=-7,
            max_attempts=9,
            unique_key="u",
            limit_key="k",
            expires_at=until,
            meta={"tenant": "a", "deep": {"list": [1, None, True, 1.5]}},
        ).enqueue()
    assert await only(rows, "args, priority, max_attempts, unique_key, limit_key, expires_at, meta, task, queue") == {
        "args": {},
        "priority": -7,
        "max_attempts": 9,
        "unique_key": "u",
        "limit_key": "k",
        "expires_at": until,
        "meta": {"tenant": "a", "deep": {"list": [1, None, True, 1.5]}},
        "task": "note",
        "queue": "notes",
    }


async def test_zero_is_a_priority_of_its_own(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, priority=0).enqueue()
    assert await only(rows, "priority") == {"priority": 0}


@pytest.mark.parametrize(
    "options",
    [
        {"priority": -32768},
        {"priority": 32767},
        {"max_attempts": 2147483647},
        {"meta": {"k": "x" * 8184}},  # 8192 bytes as JSON
    ],
)
async def test_the_edges_of_what_is_allowed_can_be_stored(
    engine: Engine, note: Any, rows: Rows, options: dict[str, Any]
) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, **options).enqueue()
    assert await only(rows, ", ".join(options)) == options


async def test_a_delay_counts_from_the_database_clock(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, delay=timedelta(days=400, hours=1, microseconds=7)).enqueue()
    assert await only(rows, "run_at - created_at as delay") == {"delay": timedelta(days=400, hours=1, microseconds=7)}


async def test_no_delay_is_now(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, delay=timedelta(0)).enqueue()
    assert await only(rows, "run_at = created_at as now") == {"now": True}


@pytest.mark.parametrize(
    "run_at",
    [
        datetime(2040, 1, 1, 12, tzinfo=UTC),
        datetime(2040, 1, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
        datetime(1999, 12, 31, tzinfo=UTC),
        datetime(2, 1, 1, tzinfo=UTC),
        datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
)
async def test_run_at_is_kept_to_the_microsecond(engine: Engine, note: Any, rows: Rows, run_at: datetime) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, run_at=run_at).enqueue()
    stored = await only(rows, "run_at = cast(:run_at as timestamptz) as same".replace(":run_at", f"'{run_at}'"))
    assert stored == {"same": True}


async def test_an_empty_key_means_none(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="", limit_key="").enqueue(n=1)
        await note.using(session=connection, unique_key="", limit_key="").enqueue(n=2)
    assert await rows("select unique_key, limit_key from akadze.jobs") == [
        {"unique_key": None, "limit_key": None},
        {"unique_key": None, "limit_key": None},
    ]


async def test_a_bound_task_can_be_used_again(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        bound = note.using(session=connection, priority=9)
        await bound.enqueue(n=1)
        await bound.enqueue(n=2)
        await bound.enqueue_many([{"n": 3}])
    assert await numbers(rows) == [1, 2, 3]


async def test_arguments_are_stored_in_their_json_form(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("typed")
    def typed(
        at: datetime, key: UUID, price: Decimal, where: Address, colour: Colour, big: int, names: set[str]
    ) -> None: ...

    async with engine.begin() as connection:
        await typed.using(session=connection).enqueue(
            at=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
            key=UUID(int=7),
            price=Decimal("0.10"),
            where=Address(street="Long"),
            colour=Colour.RED,
            big=10**40,
            names={"one"},
        )
    stored = await only(rows, "args - 'big' as args, args ->> 'big' as big")
    assert stored == {
        "big": "1" + 40 * "0",
        "args": {
            "at": "2030-01-02T03:04:05Z",
            "key": "00000000-0000-0000-0000-000000000007",
            "price": "0.10",
            "where": {"street": "Long", "number": 1},
            "colour": "red",
            "names": ["one"],
        },
    }


async def test_parameters_may_have_the_names_of_everything_that_enqueue_uses(
    engine: Engine, app: Akadze, rows: Rows
) -> None:
    @app.task("odd")
    def odd(
        self: int, session: str, priority: int, json: int, schema: int, model_config: int, args: int, kwargs: int,
        task: int, items: int, meta: dict[str, int], copy: int, cls: int, delay: int, id: int,  # noqa: A002 - on purpose
    ) -> None: ...  # fmt: skip

    given: dict[str, Any] = {
        "self": 1, "session": "s", "priority": 2, "json": 3, "schema": 4, "model_config": 5, "args": 6, "kwargs": 7,
        "task": 8, "items": 9, "meta": {"a": 1}, "copy": 10, "cls": 11, "delay": 12, "id": 13,
    }  # fmt: skip
    async with engine.begin() as connection:
        await odd.using(session=connection, priority=20, meta={"b": 2}).enqueue(**given)
        await odd.using(session=connection).enqueue_many([given])
    assert await rows("select args, priority, meta from akadze.jobs order by id") == [
        {"args": given, "priority": 20, "meta": {"b": 2}},
        {"args": given, "priority": 0, "meta": {}},
    ]


async def test_odd_text_is_stored_to_the_character(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("text")
    def store(value: str) -> None: ...

    odd = "%s %(n)s :n :name ::text $1 \\ \\u0000 ' \" {} \n\t\x01\x7f é é 𝄞 \u2028 ; drop table akadze.jobs; --"
    async with engine.begin() as connection:
        await store.using(session=connection, meta={odd: odd}, unique_key=odd, limit_key=odd).enqueue(value=odd)
    assert await only(rows, "args, meta, unique_key, limit_key") == {
        "args": {"value": odd},
        "meta": {odd: odd},
        "unique_key": odd,
        "limit_key": odd,
    }


async def test_arguments_are_by_name_only(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        with pytest.raises(EnqueueError, match="by name"):
            await note.using(session=connection).enqueue(1)
        assert (await connection.execute(text("select 1"))).scalar() == 1
    assert await numbers(rows) == []


async def test_a_session_outside_a_transaction_is_refused_where_its_job_would_be_lost(
    engine: Engine, note: Any, rows: Rows
) -> None:
    async with engine.connect() as connection:
        with pytest.raises(EnqueueError, match="not in a transaction"):
            note.using(session=connection)
        await connection.begin()
        await note.using(session=connection).enqueue(n=1)
        await connection.commit()
    assert await numbers(rows) == [1]


async def test_a_bound_task_whose_transaction_has_ended_is_refused(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.connect() as connection:
        async with connection.begin():
            bound = note.using(session=connection)
            await bound.enqueue(n=1)
        with pytest.raises(EnqueueError, match="not in a transaction"):
            await bound.enqueue(n=2)
        with pytest.raises(EnqueueError, match="not in a transaction"):
            await bound.enqueue_many([{"n": 2}])
        async with connection.begin():
            await bound.enqueue(n=3)
    assert await numbers(rows) == [1, 3]
