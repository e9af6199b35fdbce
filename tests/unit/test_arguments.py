"""Contract, section 3: arguments that come back from JSON as they were given."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    computed_field,
)
from typing_extensions import TypedDict

from akadze._arguments import Arguments
from akadze.errors import EnqueueError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    tags: list[str] = []


class Bulk(BaseModel):
    ids: list[UUID]
    at: dict[str, datetime]
    raw: bytes
    amount: Decimal


@dataclass
class Point:
    x: int
    label: str = "p"
    parts: list[Decimal] = field(default_factory=list)


class Row(TypedDict):
    n: int
    when: datetime


class Pair(NamedTuple):
    left: int
    right: str


def taking(annotation: Any) -> Arguments:
    def body(value: object) -> None: ...

    body.__annotations__["value"] = annotation
    return Arguments("t", body)


def round_trip(annotation: Any, value: Any) -> Any:
    arguments = taking(annotation)
    return arguments.from_json(arguments.to_json({"value": value}))["value"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, 2**53 + 1),
        (int, 10**30),
        (int, -(10**4000)),
        (bool, True),
        (float, 0.1),
        (float, 1.7976931348623157e308),
        (str, "žluť 🐎 \\u0000 \x01 \x7f"),
        (str, "x" * 1_000_000),
        (bytes, b"abc\xc4\x8d"),
        (Decimal, Decimal("0.10")),
        (Decimal, Decimal("1E+2")),
        (Decimal, Decimal("1E+1000")),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 1, timezone(timedelta(hours=5, minutes=45)))),
        (datetime, datetime(2026, 1, 2)),  # noqa: DTZ001 - naive on purpose
        (date, date(2026, 2, 28)),
        (timedelta, timedelta(days=-1, microseconds=1)),
        (timedelta, timedelta.max),
        (UUID, UUID(int=7)),
        (Color, Color.BLUE),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (int | None, None),
        (int | str, "5"),
        (int | str, 5),
        (int | float, 1.0),
        (Decimal | None, Decimal("1.50")),
        (UUID | int, UUID(int=1)),
        (dict[int, str], {1: "a"}),
        (dict[str, list[UUID]], {"k": [UUID(int=1)]}),
        (list[Address], [Address(street="a", tags=["x"])]),
        (Address | None, Address(street="b")),
        (Point, Point(1, parts=[Decimal("2.50")])),
        (Row, {"n": 1, "when": datetime(2026, 1, 1, tzinfo=UTC)}),
        (Pair, Pair(1, "r")),
        (Bulk, Bulk(ids=[uuid4()] * 3, at={"a": datetime.now(UTC)}, raw=b"abc", amount=Decimal("0.10"))),
        (Literal["a", 1], 1),
        (Any, {"k": [1, 2.5, None, True, {"deep": "x"}]}),
        (dict, {"k": [10**30]}),
        (Annotated[int, Field(gt=3)], 4),
        (Address | Point, Point(3)),
    ],
)
def test_a_value_comes_back_as_the_declared_type(annotation: Any, value: Any) -> None:
    back = round_trip(annotation, value)
    assert back == value
    assert type(back) is type(value)
    assert str(back) == str(value) if isinstance(value, Decimal) else True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(json_values)
def test_any_json_value_comes_back_unchanged_or_is_refused_for_its_nul(value: Any) -> None:
    try:
        back = round_trip(Any, value)
    except EnqueueError as error:
        assert "NUL" in str(error)  # noqa: PT017 - either way is right
        assert "\x00" in repr(value) or "\\x00" in repr(value)
    else:
        assert back == value


@given(st.datetimes(timezones=st.timezones()))
def test_a_datetime_of_any_zone_comes_back_as_the_same_instant_or_is_refused(value: datetime) -> None:
    try:
        back = round_trip(datetime, value)
    except EnqueueError as error:
        offset = value.utcoffset()
        assert offset is not None
        assert offset % timedelta(minutes=1), error  # noqa: PT017 - JSON has offsets of whole minutes only
    else:
        assert back - value == timedelta(0)


def test_the_second_pass_of_a_repeated_hour_is_the_same_instant() -> None:
    value = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    assert round_trip(datetime, value).astimezone(UTC) == datetime(2024, 10, 27, 1, 30, tzinfo=UTC)


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.uuids() | st.timedeltas() | st.text())
def test_a_union_gives_back_the_same_type_or_refuses(value: Any) -> None:
    try:
        back = round_trip(Decimal | UUID | timedelta | str, value)
    except EnqueueError:
        return
    assert type(back) is type(value)
    assert back == value


def test_a_str_enum_and_its_text_are_not_confused_in_a_union() -> None:
    class Name(StrEnum):
        A = "a"

    with pytest.raises(EnqueueError, match="a Name would come back as a str"):
        round_trip(Name | str, Name.A)
    assert round_trip(Name, Name.A) is Name.A


def test_subclasses_of_plain_types_arrive_as_the_plain_type() -> None:
    class Safe(str):
        __slots__ = ()

    class Number(IntEnum):
        ONE = 1

    assert type(round_trip(str, Safe("x"))) is str
    assert type(round_trip(Any, Safe("x"))) is str
    assert round_trip(int, Number.ONE) == 1
    with pytest.raises(EnqueueError, match="a Number would come back as an int"):
        round_trip(Any, Number.ONE)


def test_models_arrive_whether_given_as_instances_or_as_dicts() -> None:
    def body(a: Address, more: list[Address]) -> None: ...

    arguments = Arguments("t", body)
    one, other = Address(street="s"), Address(street="o", tags=["t"])
    for items in ({"a": one, "more": [other]}, {"a": one.model_dump(), "more": [other.model_dump()]}):
        back = arguments.from_json(arguments.to_json(items))
        assert back == {"a": one, "more": [other]}
        assert isinstance(back["more"][0], Address)


@pytest.mark.parametrize(
    "model",
    [
        {"a": (int, Field(alias="x"))},
        {"a": (int, Field(validation_alias=AliasChoices("x", "y")))},
        {"a": (int, Field(serialization_alias="x"))},
    ],
)
def test_a_model_with_aliases_survives(model: dict[str, Any]) -> None:
    from pydantic import create_model

    kind = create_model("Kind", __config__=ConfigDict(extra="forbid"), **model)
    value = kind(**{"x" if model["a"][1].validation_alias else "a": 1})
    assert round_trip(kind, value) == value


def test_a_union_told_apart_by_an_aliased_field_survives() -> None:
    class Cat(BaseModel):
        kind: Literal["cat"] = Field(alias="Kind")

    class Dog(BaseModel):
        kind: Literal["dog"] = Field(alias="Kind")

    pet = Annotated[Cat | Dog, Field(discriminator="kind")]
    assert round_trip(pet, {"Kind": "dog"}) == Dog(Kind="dog")
    assert round_trip(list[pet], [Cat(Kind="cat")]) == [Cat(Kind="cat")]


def test_computed_fields_do_not_get_in_the_way() -> None:
    class Square(BaseModel):
        model_config = ConfigDict(extra="forbid")
        side: int

        @computed_field(return_type=int)
        def area(self):
            return self.side**2

    assert round_trip(Square, Square(side=3)) == Square(side=3)
