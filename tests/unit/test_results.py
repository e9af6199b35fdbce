"""Contract, section 5: what a task body returned, to the JSON that is stored."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    model_serializer,
)

from akadze._arguments import ResultNotJson, result_to_json


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    tags: list[str] = []


@dataclass
class Point:
    x: int
    label: str = "p"
    parts: list[Decimal] = field(default_factory=list)


class Pair(NamedTuple):
    left: int
    right: str


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


class Loose(BaseModel):
    x: float | None = None
    d: Any = None


class Constant(Enum):
    NONE = float("nan")


class Silent(BaseModel):
    n: int

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (True, True), (False, False), (0, 0), (10**30, 10**30), ("", ""), ("žluť 🐎 \\u0000", "žluť 🐎 \\u0000"),
        (1.5, 1.5), ([None, Decimal("1E+1000")], [None, "1E+1000"]),
        ([1, None, "a"], [1, None, "a"]), ({"k": {"n": None}}, {"k": {"n": None}}), ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}), ({5}, [5]), (b"ab", "ab"), (Decimal("0.10"), "0.10"), (UUID(int=1), str(UUID(int=1))),
        (Color.RED, "red"), (date(2026, 1, 1), "2026-01-01"), (timedelta(seconds=1), "PT1S"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"), (Address(street="s"), {"street": "s", "tags": []}),
        (Point(1), {"x": 1, "label": "p", "parts": []}), ([Silent(n=1)], [{"n": 1}]), (Pair(1, "r"), [1, "r"]),
        ((n for n in [1, None]), [1, None]), (deque([1, None]), [1, None]),
        (Loose(), {"x": None, "d": None}), ({"NaN": "Infinity"}, {"NaN": "Infinity"}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_result_is_stored_in_its_json_form(value: Any, stored: Any) -> None:
    text = result_to_json(value)
    assert text is not None
    assert json.loads(text) == stored


def test_no_result_is_no_json() -> None:
    assert result_to_json(None) is None


async def forgotten() -> int:
    return 1


class Unwritable(BaseModel):
    n: int

    @model_serializer
    def write(self) -> Any:
        raise RuntimeError("secret")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "NaN or an infinity"),
        ({"mean": float("nan")}, "NaN"),
        ([{"k": (1, float("-inf"))}], "NaN"),
        (Decimal("NaN"), "NaN"),
        ({"k": {Decimal("Infinity")}}, "NaN"),
        (Loose(x=float("nan")), "NaN"),
        (Loose(d=[float("nan")]), "NaN"),
        ([Loose(d=Decimal("sNaN"))], "NaN"),
        (deque([float("nan")]), "NaN"),
        ((n for n in [float("nan")]), "NaN"),
        ({"k": (n for n in [float("nan")])}, "NaN"),
        (complex(0, float("nan")), "NaN"),
        (Constant.NONE, "NaN"),
        (Loose(d=deque([float("nan")])), "NaN"),
        (Loose(d=Constant.NONE), "NaN"),
        (Loose(x=1.0, d=(n for n in [float("nan")])), "an iterator, in which a null may have been NaN"),
        ("secret\x00", "NUL"),
        ({"secret\x00": 1}, "NUL"),
        (Address(street="\x00"), "NUL"),
        ("secret\ud800", "str has no JSON form"),
        ({"\ud800": 1}, "dict has no JSON form"),
        (b"secret\xff", "bytes has no JSON form"),
        (object(), "type object has no JSON form"),
        ([object()], "unknown type"),
        (Address, "no JSON form"),
        (ValueError("secret"), "no JSON form"),
        (forgotten, "no JSON form"),
        (10**5000, "int has no JSON form"),
        ([10**5000], "4300 digits"),
        (Unwritable(n=1), "no JSON form"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_cannot_be_stored_is_named_by_type_only(value: Any, says: str) -> None:
    with pytest.raises(ResultNotJson, match=says) as caught:
        result_to_json(value)
    assert "secret" not in str(caught.value)


def test_a_coroutine_as_result_is_explained_and_closed() -> None:
    with pytest.raises(ResultNotJson, match="async def"):
        result_to_json(forgotten())


def test_a_result_that_holds_itself_or_is_too_deep_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (ring, deep):
        with pytest.raises(ResultNotJson):
            result_to_json(value)


def test_a_changed_model_is_written_as_it_is_without_a_warning() -> None:
    address = Address(street="s")
    address.tags = 5  # type: ignore[assignment]
    assert json.loads(result_to_json([address]) or "") == [{"street": "s", "tags": 5}]


@given(json_values)
def test_any_json_result_is_stored_unchanged_or_refused_for_its_nul(value: Any) -> None:
    try:
        text = result_to_json(value)
    except ResultNotJson as error:
        assert "NUL" in str(error)  # noqa: PT017 - either way is right
    else:
        assert json.loads(text or "null") == value
