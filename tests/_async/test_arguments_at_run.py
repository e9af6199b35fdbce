"""Contract, section 3: arguments arrive as the declared types, and are checked again at run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from typing import Any, Literal
from uuid import UUID

import pydantic
import pytest

from akadze import Akadze
from akadze.testing import drain
from tests.odd_names import ODDLY_NAMED

from .conftest import Engine, Rows


class Colour(StrEnum):
    RED = "red"


class Size(Enum):
    SMALL = 1


class Address(pydantic.BaseModel):
    street: str
    since: date


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


INDIA = timezone(timedelta(hours=5, minutes=30))

VALUES: list[tuple[Any, Any]] = [
    (int, 10**100), (int, -(2**63)), (float, 0.1), (float, 1e300), (float, 5e-324), (bool, True), (str, ""),
    (str, "žluť 𝄞 \\u0000 %s"), (bytes, b"text"), (type(None), None), (Decimal, Decimal("0.100")),
    (Decimal, Decimal("123456789012345678901234567890.000000001")), (UUID, UUID(int=7)), (date, date(2, 1, 1)),
    (time, time(1, 2, 3, 4)), (timedelta, timedelta(days=-1, microseconds=1)),
    (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=INDIA)), (datetime, datetime(2030, 1, 2, 3)), # noqa: DTZ001 - naive on purpose
    (Colour, Colour.RED), (Size, Size.SMALL), (Literal["a", "b"], "b"), (PurePosixPath, PurePosixPath("/a/b")),
    (list[int], [1, 2]), (tuple[int, str], (1, "a")), (set[str], {"a"}), (frozenset[int], frozenset({1})),
    (dict[str, int], {"a": 1, "": 2}), (dict[int, str], {1: "a"}),
    (dict[str, Any], {"a": [None, True, 1.5, {"b": "c"}]}),
    (Mapping[str, int], {"a": 1}), (int | None, None), (int | str, "1"), (int | str, 1), (Any, [1, {"a": None}]),
    (Address, Address(street="Long", since=date(2030, 1, 1))),
    (list[Address], [Address(street="a", since=date(2, 1, 1))]),
    (Point, Point(1, Decimal("2.50"))), (dict[str, Point], {"p": Point(1, Decimal(1))}),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda value: ascii(value)[:40])
async def test_an_argument_arrives_as_it_was_given(
    annotation: Any, value: Any, engine: Engine, app: Akadze, rows: Rows
) -> None:
    arrived: list[Any] = []

    def body(it: Any) -> None:
        arrived.append(it)

    body.__annotations__["it"] = annotation
    task = app.register(body, name="typed")
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue(it=value)
        await task.using(session=connection).enqueue_many([{"it": value}])
    await drain(app)
    assert await rows("select state, errors from akadze.jobs") == [{"state": "succeeded", "errors": []}] * 2
    assert arrived == [value, value]
    assert [type(it) for it in arrived] == [type(value)] * 2


async def test_defaults_are_those_of_the_function_at_the_time_of_the_run(engine: Engine, app: Akadze) -> None:
    arrived: list[Any] = []

    @app.task("work")
    def work(n: int, names: list[str] = [], at: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:  # noqa: B006 - on purpose
        names.append(str(n))
        arrived.append((n, names, at))

    async with engine.begin() as connection:
        await work.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}, {"n": 3, "names": ["own"]}])
    await drain(app)
    year = datetime(2030, 1, 1, tzinfo=UTC)
    assert arrived == [(1, ["1"], year), (2, ["2"], year), (3, ["own", "3"], year)]


@pytest.mark.parametrize("colour", ODDLY_NAMED)
async def test_parameters_that_have_the_names_of_everything_that_a_run_uses_get_what_was_given(
    colour: str, engine: Engine, app: Akadze, rows: Rows
) -> None:
    task, given, arrived = ODDLY_NAMED[colour](app)
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue(**given)
        await task.using(session=connection).enqueue_many([given])
    await drain(app)
    assert await rows("select state, errors from akadze.jobs") == [{"state": "succeeded", "errors": []}] * 2
    assert arrived == [given] * 2


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ('{"n": "x"}', "argument 'n'"),
        ("{}", "argument 'n' is missing"),
        ('{"n": 1, "gone": 2}', "no parameter 'gone'"),
    ],
)
@pytest.mark.parametrize(("attempts", "state"), [(1, "failed"), (2, "queued")])
async def test_stored_arguments_that_no_longer_fit_are_an_error_of_the_run(
    stored: str, says: str, attempts: int, state: str, app: Akadze, rows: Rows
) -> None:
    @app.task("work")
    def work(n: int) -> None:
        raise AssertionError("the body must not run")

    await rows(
        "insert into akadze.jobs (task, args, max_attempts)"
        " values ('work', cast(cast(:args as text) as jsonb), cast(:attempts as integer))",
        args=stored,
        attempts=attempts,
    )
    await drain(app)
    [row] = await rows("select state, attempt, errors from akadze.jobs")
    assert (row["state"], row["attempt"]) == (state, 1)
    assert row["errors"][0]["error"] == "ArgumentsInvalid"
    assert says in row["errors"][0]["message"]
