"""Contract, sections 3, 5 and 15: what goes into a job comes out of it, or is refused where it is given."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from sqlalchemy import text

from akadze import Akadze, AkadzeError, EnqueueError
from akadze.task import Task
from akadze.testing import assert_enqueued, drain
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

NAN = float("nan")


@pytest.fixture
def texts(app: Akadze) -> Task[Any]:
    def f(s: str = "", d: dict[str, Any] | None = None) -> None: ...

    return app.register(f, name="f")


async def refused(app: Akadze, table: Table, task: Task[Any], arguments: dict[str, Any], **options: Any) -> None:
    """Enqueue, alone and with others, in a transaction that stays usable, and see EnqueueError and no row."""
    async with app.engine.connect() as connection:
        await connection.begin()
        with pytest.raises(EnqueueError):
            await task.using(session=connection, **options).enqueue(**arguments)
        with pytest.raises(EnqueueError):
            await task.using(session=connection, **options).enqueue_many([{}, arguments])
        assert await connection.scalar(text("select 1")) == 1
        await connection.commit()
    assert await table.rows("select id from akadze.jobs") == []


@pytest.mark.parametrize("bad", ["a\x00b", "\x00", "\ud800", "a\udfffb"], ids=ascii)
async def test_b077_text_that_the_database_cannot_hold_is_refused_at_the_call(
    app: Akadze, table: Table, texts: Task[Any], bad: str
) -> None:
    for arguments in ({"s": bad}, {"d": {"k": [bad]}}, {"d": {bad: 1}}, {"d": {"k": {bad: {}}}}):
        await refused(app, table, texts, arguments)
    for options in ({"meta": {"k": bad}}, {"meta": {bad: 1}}, {"meta": {"k": [{"l": bad}]}}, {"limit_key": bad}):
        await refused(app, table, texts, {}, **options)
    await refused(app, table, texts, {}, unique_key=bad)
    for names in ({"queue": bad, "name": "g"}, {"name": bad}):
        with pytest.raises(AkadzeError):
            app.register(texts.fn, **names)
    assert [*app.tasks] == ["f"]


async def test_b077_text_that_only_looks_so_is_taken(app: Akadze, table: Table, texts: Task[Any]) -> None:
    for harmless in (r"\u0000", r"a\\u0000", r"\ud800", "\\", "🐎"):
        await enqueue(texts, {"s": harmless, "d": {harmless: [harmless]}}, meta={harmless: harmless})
        row = (await table.rows("select args, meta from akadze.jobs order by id desc limit 1"))[0]
        assert row == {"args": {"s": harmless, "d": {harmless: [harmless]}}, "meta": {harmless: harmless}}


class Reading(BaseModel):
    x: float


async def test_b079_numbers_that_json_cannot_hold_are_refused_at_the_call(app: Akadze, table: Table) -> None:
    def f(
        x: float = 0,
        d: dict[str, Any] | None = None,
        m: Reading | None = None,
        n: Decimal | None = None,
        q: deque[float] | None = None,
    ) -> None: ...

    task = app.register(f, name="f")
    for x in (math.nan, math.inf, -math.inf):
        for arguments in ({"x": x}, {"d": {"k": [x]}}, {"d": {"k": {"l": x}}}, {"m": Reading(x=x)}, {"q": deque([x])}):
            await refused(app, table, task, arguments)
        await refused(app, table, task, {"n": Decimal(x)})
        await refused(app, table, task, {}, meta={"k": x})
        await refused(app, table, task, {}, meta={"k": [{"l": x}]})


@dataclass
class Point:
    x: float


class Odd(Enum):
    NONE = NAN


class Anything(BaseModel):
    d: Any


RESULTS = {
    "mapping": {"mean": NAN},
    "list": [[math.inf]],
    "decimal": Decimal("NaN"),
    "dataclass": Point(NAN),
    "model": [Reading(x=-math.inf)],
    "deque": deque([NAN]),
    "enum": {"k": Odd.NONE},
    "deque in a model": Anything(d=deque([NAN])),
    "enum in a model": Anything(d=[Odd.NONE]),
}


@pytest.mark.parametrize("kind", RESULTS)
async def test_b080_a_result_with_nan_is_an_error_of_its_run_and_frees_the_slot(
    app: Akadze, table: Table, serve: Serve, kind: str
) -> None:
    async def f(which: str) -> Any:
        return RESULTS.get(which)

    task = app.register(f, name="f", max_attempts=1)
    served = await serve(slots=1)
    jobs = [await enqueue(task, {"which": which}) for which in (kind, "none")]
    await table.ended(*jobs)

    row, after = await table.jobs(*jobs)
    assert (row["state"], row["error_names"], row["result"]) == ("failed", ["ResultNotJson"], None)
    assert "result" in row["errors"][0]["message"]
    assert (after["state"], after["started_at"] >= row["finished_at"]) == ("succeeded", True)
    assert after["started_at"] - row["finished_at"] < timedelta(seconds=1)
    assert served.up


async def test_b080_a_drained_result_with_nan_is_an_error_of_its_run(app: Akadze, table: Table) -> None:
    async def f() -> Any:
        return (x for x in [1.0, NAN])

    job = await enqueue(app.register(f, name="f", max_attempts=1))
    await drain(app)
    assert (await table.job(job))["error_names"] == ["ResultNotJson"]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


GIVEN: dict[str, Any] = {
    "d": datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    "u": UUID("00112233-4455-6677-8899-aabbccddeeff"),
    "m": Decimal("0.10"),
    "day": date(2026, 2, 28),
    "td": timedelta(days=-1, microseconds=1),
    "e": Color.BLUE,
    "t": (7, "seven"),
    "o": 5,
}
OTHER: dict[str, Any] = {
    "d": GIVEN["d"] + timedelta(microseconds=1),
    "u": UUID(int=1),
    "m": Decimal("0.11"),
    "day": date(2026, 3, 1),
    "td": timedelta(days=-1),
    "e": Color.RED,
    "t": (7, "eight"),
    "o": None,
}


async def test_b083_values_arrive_as_the_declared_types(app: Akadze, table: Table, serve: Serve) -> None:
    got: list[dict[str, Any]] = []

    async def f(
        d: datetime,
        u: UUID,
        m: Decimal,
        day: date,
        td: timedelta,
        e: Color,
        t: tuple[int, str],
        o: int | None = None,
    ) -> None:
        got.append({"d": d, "u": u, "m": m, "day": day, "td": td, "e": e, "t": t, "o": o})

    job = await enqueue(app.register(f, name="f"), GIVEN)
    await assert_enqueued(app, "f", **GIVEN)
    for name, value in OTHER.items():
        with pytest.raises(AssertionError):
            await assert_enqueued(app, "f", **{**GIVEN, name: value})
    await serve()
    assert (await table.ended(job))["state"] == "succeeded"

    assert got == [GIVEN]
    assert {name: type(value) for name, value in got[0].items()} == {n: type(value) for n, value in GIVEN.items()}
    assert str(got[0]["m"]) == "0.10"
    assert [type(item) for item in got[0]["t"]] == [int, str]


class Address(BaseModel):
    street: str
    tags: list[str] = []


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_b084_models_arrive_as_models_and_each_run_has_its_own(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    seen: list[tuple[Any, ...]] = []

    def body(a: Address, more: list[Address], kept: list[Address]) -> None:
        assert all(isinstance(item, Address) for item in (a, *more, *kept))
        seen.append((a.street, [*a.tags], [item.street for item in more], [[*item.tags] for item in kept]))
        a.tags.append("changed")
        kept[0].tags.append("changed")

    default = [Address(street="d")]

    def plain(a: Address, more: list[Address], kept: list[Address] = default) -> None:
        body(a, more, kept)

    async def awaited(a: Address, more: list[Address], kept: list[Address] = default) -> None:
        body(a, more, kept)

    task = app.register(awaited if colour == "async" else plain, name="f")
    given = {"a": Address(street="s"), "more": [Address(street="m", tags=["x"])]}
    dicts = {"a": {"street": "s"}, "more": [{"street": "m", "tags": ["x"]}]}
    jobs = [await enqueue(task, arguments) for arguments in (given, dicts)]
    for wrong in ({"street": 7}, {"street": "s", "tags": "x"}, {}, "s"):
        await refused_alone(app, task, {"a": wrong, "more": []})
        await refused_alone(app, task, {"a": {"street": "s"}, "more": [wrong]})
    await serve()
    await table.ended(*jobs)
    jobs.append(await enqueue(task, given))
    await drain(app)

    assert {row["state"] for row in await table.jobs(*jobs)} == {"succeeded"}
    assert seen == [("s", [], ["m"], [[]])] * 3
    assert given["a"] == Address(street="s")


async def refused_alone(app: Akadze, task: Task[Any], arguments: dict[str, Any]) -> None:
    async with app.engine.begin() as connection:
        with pytest.raises(EnqueueError):
            await task.using(session=connection).enqueue(**arguments)


class M(BaseModel):
    ids: list[UUID]
    at: dict[str, datetime]
    raw: bytes
    amount: Decimal


def m(raw: bytes) -> M:
    return M(
        ids=[UUID(int=n) for n in (1, 2, 3)],
        at={"k": datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=-3)))},
        raw=raw,
        amount=Decimal("1.50"),
    )


async def test_b085_a_model_of_many_types_comes_back_whole(app: Akadze, table: Table, serve: Serve) -> None:
    got: list[M] = []

    async def f(m: M) -> M:
        got.append(m)
        return m

    job = await enqueue(app.register(f, name="f"), {"m": m(b"abc")})
    await serve()
    row = await table.ended(job)

    assert got == [m(b"abc")]
    assert str(got[0].amount) == "1.50"
    assert row["state"] == "succeeded"
    assert M.model_validate_json(json.dumps(row["result"])) == m(b"abc")


async def test_b085_bytes_that_are_no_text_are_refused_never_changed(app: Akadze, table: Table, serve: Serve) -> None:
    async def f(m: M | None = None) -> Any:
        return b"\xff\xfe"

    task = app.register(f, name="f", max_attempts=1)
    await refused(app, table, task, {"m": m(b"\xff\xfe")})
    job = await enqueue(task)
    await serve()
    assert (await table.ended(job))["error_names"] == ["ResultNotJson"]


class Silent(BaseModel):
    secret: str

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Broken(logging.Handler):
    """What it was given is kept, and then it fails."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        raise OSError("no space left on device")


@pytest.fixture
def debugging(caplog: pytest.LogCaptureFixture) -> Iterator[Broken]:
    """Log all of akadze, to a handler that fails as well."""
    handler = Broken()
    logger = logging.getLogger("akadze")
    with caplog.at_level(logging.DEBUG, logger="akadze"):
        logger.addHandler(handler)
        yield handler
        logger.removeHandler(handler)


async def silent(s: Silent, fail: bool = False) -> Silent:
    if fail:
        raise ValueError(s.secret)
    return s


@pytest.mark.parametrize("broken", [False, True], ids=["", "with a handler that raises"])
async def test_b088_neither_a_repr_nor_a_log_handler_that_raises_stops_a_worker(
    app: Akadze,
    table: Table,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    broken: bool,
) -> None:
    task = app.register(silent, name="f", max_attempts=1)
    if broken:
        lines = request.getfixturevalue("debugging").lines
    else:
        caplog.set_level(logging.DEBUG, logger="akadze")
        lines = None
    lost = await enqueue(task, {"s": {"secret": "hunter2"}})
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=100), lost)
    served = await serve()
    jobs = [await enqueue(task, {"s": Silent(secret="hunter2"), "fail": fail}) for fail in (False, True)]
    with pytest.raises(EnqueueError):
        await enqueue(task, {"s": Silent(secret="hunter2"), "fail": "hunter2"})
    await table.ended(*jobs, lost)

    assert [row["state"] for row in await table.jobs(*jobs, lost)] == ["succeeded", "failed", "failed"]
    assert (await table.job(jobs[0]))["result"] == {"secret": "hunter2"}
    assert served.up
    await served.stop()
    drained = await enqueue(task, {"s": Silent(secret="hunter2")})
    await drain(app)
    assert (await table.job(drained))["state"] == "succeeded"
    written = "\n".join(lines) if lines is not None else caplog.text
    assert f"job {jobs[1]}" in written
    assert "hunter2" not in written
