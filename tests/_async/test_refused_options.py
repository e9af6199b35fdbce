"""Contract, section 3: what enqueue refuses, before there is a row, leaving the transaction usable."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, AkadzeError, DuplicateJob, EnqueueError, set_limit

from .conftest import Engine, Rows
from .table import ids

NAN, INF = float("nan"), float("inf")
NAIVE = datetime(2040, 1, 1)  # noqa: DTZ001 - naive on purpose
AWARE = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture
def f(app: Akadze) -> Any:
    @app.task("f")
    def f(s: str = "", d: dict[str, Any] | None = None, x: float = 0.0, n: int = 0, at: datetime = AWARE) -> None: ...

    return f


@pytest.fixture
def refused(engine: Engine, rows: Rows) -> Callable[..., Any]:
    """Whatever is tried in this block raises EnqueueError, leaves no job, and its transaction goes on."""
    return lambda says=None: _refused(engine, rows, says)


@asynccontextmanager
async def _refused(engine: Engine, rows: Rows, says: str | None) -> AsyncIterator[Any]:
    await rows("create table if not exists public.orders (name text)")
    before = await rows("select count(*) as orders from public.orders")
    async with engine.connect() as connection:
        await connection.begin()
        await connection.execute(text("insert into public.orders (name) values ('first')"))
        with pytest.raises(EnqueueError, match=says) as raised:
            yield connection
        assert not isinstance(raised.value, DuplicateJob)
        assert connection.in_transaction()
        await connection.execute(text("insert into public.orders (name) values ('second')"))
        await connection.commit()
    assert await ids(rows) == []
    [after] = await rows("select count(*) as orders from public.orders")
    assert after["orders"] == before[0]["orders"] + 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"s": "a\0b"}, {"d": {"k": ["\0"]}}, {"d": {"\0": 1}}, {"s": "\ud800"}, {"d": {"k": "\udfff"}},
        {"x": NAN}, {"x": INF}, {"x": -INF}, {"d": {"k": [NAN]}}, {"d": {"k": {"deep": [[INF]]}}},
        {"n": "seven"}, {"n": 1.5}, {"n": None}, {"n": True, "s": 1}, {"unknown": 1}, {"d": [1]},
        {"d": {"k": object()}}, {"d": {"k": b"\xff"}}, {"d": {1: 2}}, {"d": {"k": {1, 2}}}, {"at": "tomorrow"},
    ],
)  # fmt: skip
async def test_arguments_that_do_not_fit_or_cannot_be_stored(
    arguments: dict[str, Any], f: Any, refused: Callable[..., Any], rows: Rows
) -> None:
    async with refused("'f'") as connection:
        await f.using(session=connection).enqueue(**arguments)
    async with refused("'f'") as connection:
        await f.using(session=connection).enqueue_many([{"n": 1}, arguments, {"n": 2}])


async def test_a_missing_argument_is_named(app: Akadze, refused: Callable[..., Any]) -> None:
    @app.task("needs")
    def needs(who: str) -> None: ...

    async with refused("'who' is missing") as connection:
        await needs.using(session=connection).enqueue()


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": NAIVE}, {"expires_at": NAIVE}, {"run_at": AWARE.date()}, {"run_at": "2040-01-01"},
        {"delay": timedelta(1), "run_at": AWARE}, {"delay": timedelta(0), "run_at": AWARE},
        {"delay": timedelta(microseconds=-1)}, {"delay": timedelta.max}, {"delay": 5},
        {"run_at": datetime.max.replace(tzinfo=UTC)}, {"expires_at": datetime.min.replace(tzinfo=timezone.max)},
        {"priority": 32768}, {"priority": -32769}, {"priority": 10**30}, {"priority": 1.0}, {"priority": True},
        {"max_attempts": 0}, {"max_attempts": -1}, {"max_attempts": 2**31}, {"max_attempts": "3"},
        {"unique_key": "a\0"}, {"limit_key": "a\0"}, {"unique_key": "\ud800"}, {"limit_key": "\ud800"},
        {"unique_key": 7}, {"limit_key": b"k"}, {"unique_key": "x" * 513}, {"limit_key": "ž" * 257},
        {"meta": [("k", 1)]}, {"meta": "{}"}, {"meta": {1: 1}}, {"meta": {"k": {2: 1}}}, {"meta": {"k": NAN}},
        {"meta": {"k": [INF]}}, {"meta": {"k": "\0"}}, {"meta": {"\0": 1}}, {"meta": {"k": "\ud800"}},
        {"meta": {"k": AWARE}}, {"meta": {"k": {1}}}, {"meta": {"k": "x" * 8185}}, {"meta": {"k": "ž" * 4093}},
    ],
    ids=lambda options: ascii(options)[:60],
)  # fmt: skip
async def test_options_out_of_range_or_of_the_wrong_kind(
    options: dict[str, Any], f: Any, refused: Callable[..., Any]
) -> None:
    async with refused() as connection:
        await f.using(session=connection, **options).enqueue()
    async with refused() as connection:
        await f.using(session=connection, **options).enqueue_many([{}])


@pytest.mark.parametrize("length", [255, 512])
async def test_a_long_key_that_is_taken_works(length: int, engine: Engine, f: Any, rows: Rows) -> None:
    key = secrets.token_urlsafe(length)[:length]
    async with engine.begin() as connection:
        await set_limit(connection, key, 1)
        await f.using(session=connection, unique_key=key, limit_key=key).enqueue()
        with pytest.raises(DuplicateJob):
            await f.using(session=connection, unique_key=key).enqueue()
    assert await rows("select j.unique_key from akadze.jobs j join akadze.limits m on m.key = j.limit_key") == [
        {"unique_key": key}
    ]


@pytest.mark.parametrize("length", [513, 2_600, 3_000, 100_000])
async def test_a_longer_key_is_refused_before_the_database_sees_it(
    length: int, engine: Engine, app: Akadze, f: Any, refused: Callable[..., Any]
) -> None:
    key = secrets.token_urlsafe(length)[:length]
    for option in ("unique_key", "limit_key"):
        async with refused("512") as connection:
            await f.using(session=connection, **{option: key}).enqueue()
    with pytest.raises(AkadzeError, match="512"):
        app.register(lambda: None, name="long", queue=key)
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match="512"):
            await set_limit(connection, key, 1)
        await connection.execute(text("select 1"))


async def test_neither_arguments_nor_keys_are_shown_in_a_message(f: Any, engine: Engine) -> None:
    secret = "s3cr3t-value"
    tries: list[dict[str, Any]] = [
        {"arguments": {"n": secret}},
        {"arguments": {"s": secret + "\0"}},
        {"arguments": {"d": {secret: NAN}}},
        {"arguments": {"d": {"k": b"\xff" + secret.encode()}}},
        {"options": {"unique_key": secret + "\0"}},
        {"options": {"limit_key": secret * 100}},
        {"options": {"meta": {"k": secret + "\0"}}},
        {"options": {"meta": {secret: NAN}}},
    ]
    async with engine.begin() as connection:
        for given in tries:
            with pytest.raises(EnqueueError) as raised:
                await f.using(session=connection, **given.get("options", {})).enqueue(**given.get("arguments", {}))
            assert secret not in str(raised.value)
            assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["q\0", "\ud800", "", "x" * 513, 7, None])
async def test_a_queue_name_is_refused_at_registration(name: Any, app: Akadze) -> None:
    with pytest.raises(AkadzeError):
        app.register(lambda: None, name="t", queue=name)
    assert "t" not in app.tasks
