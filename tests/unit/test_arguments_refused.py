"""Contract, section 3: arguments that would not come back from JSON as they were given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
)

from akadze._arguments import Arguments, ResultNotJson, result_to_json
from akadze.errors import EnqueueError


class Address(BaseModel):
    street: str
    tags: list[str] = []


def taking(annotation: Any) -> Arguments:
    def body(value: object) -> None: ...

    body.__annotations__["value"] = annotation
    return Arguments("t", body)


def round_trip(annotation: Any, value: Any) -> Any:
    arguments = taking(annotation)
    return arguments.from_json(arguments.to_json({"value": value}))["value"]


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (int, "secret", "valid integer"),
        (list[int], [1, "secret"], r"\(at 1\)"),
        (Address, {"street": 5, "tags": "secret"}, r"\(at street\)"),
        (dict[str, int], {"secret": "x"}, r"\(at …\)"),
        (UUID, "secret", "valid UUID"),
        (Annotated[str, Field(max_length=3)], "secret", "at most 3"),
        (str, "secret\x00", "NUL"),
        (str, "secret\ud800", "lone surrogate"),
        (dict, {"secret": ["\x00"]}, "NUL"),
        (dict, {"\x00": "secret"}, "NUL"),
        (dict, {"\ud800": "secret"}, "surrogate"),
        (float, float("nan"), "NaN"),
        (float, float("inf"), "infinit"),
        (dict, {"k": [float("nan")]}, "NaN"),
        (Any, float("-inf"), "infinit"),
        (Any, Decimal("NaN"), "NaN"),
        (Any, Decimal("sNaN"), "NaN"),
        (Any, {"k": {"k": Decimal("Infinity")}}, "infinit"),
        (Decimal, Decimal("NaN"), "finite"),
        (Annotated[Decimal, Field(allow_inf_nan=True)], Decimal("Infinity"), "infinit"),
        (Any, datetime(2026, 1, 1, tzinfo=UTC), "a datetime would come back as a str"),
        (Any, {"k": (1, 2)}, "a tuple would come back as a list"),
        (Any, {1: "secret"}, "a key of type int"),
        (Any, {1, 2}, "a set would come back as a list"),
        (Any, Address(street="secret"), "an Address would come back as a dict"),
        (Any, object(), "unable to serialize unknown type"),
        (UUID | str, "12345678-1234-5678-1234-567812345678", "a str would come back as an? UUID"),
        (bytes, b"secret\xff\xfe", "UTF-8"),
        (SecretStr, SecretStr("secret"), "another value"),
        (int, 10**5000, "4300 digits|5000|Exceeds|digits"),
        (Any, [10**5000], "4300|read back|digits"),
        (datetime, datetime(1900, 1, 1, tzinfo=ZoneInfo("Africa/Monrovia")), "another instant"),
        (Callable[[], int], lambda: 1, "cannot be stored|unknown type|survive"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_cannot_be_stored_faithfully_is_refused(annotation: Any, value: Any, says: str) -> None:
    arguments = taking(annotation)
    with pytest.raises(EnqueueError, match=says) as caught:
        arguments.to_json({"value": value})
    assert "'value'" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "12345678" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


class Loose(BaseModel):
    x: float | None = None
    d: Any = None


@pytest.mark.parametrize("value", [Loose(x=float("nan")), Loose(d={"k": float("inf")}), Loose(d=Decimal("NaN"))])
def test_nan_inside_a_model_is_refused(value: Loose) -> None:
    with pytest.raises(EnqueueError, match="NaN and infinities"):
        round_trip(Loose, value)


@pytest.mark.parametrize("config", ["constants", "strings", "null"])
def test_a_model_s_own_way_to_write_nan_makes_no_difference(config: Literal["constants", "strings", "null"]) -> None:
    class Own(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan=config)
        x: float

    with pytest.raises(EnqueueError, match="'value'"):
        round_trip(Own, Own(x=float("inf")))


def test_a_subclass_of_the_declared_model_is_refused_rather_than_cut() -> None:
    class Villa(Address):
        pool: bool = True

    with pytest.raises(EnqueueError, match="a Villa would come back as an Address"):
        round_trip(Address, Villa(street="s"))


def test_an_invalid_model_instance_is_refused_without_a_warning() -> None:
    broken = Address(street="s")
    broken.tags = 5  # type: ignore[assignment]
    with pytest.raises(EnqueueError, match="'value'"):
        round_trip(Address, broken)
    with pytest.raises(EnqueueError, match="'value'"):
        round_trip(Address, Address.model_construct())


def test_the_words_of_a_user_s_validator_are_not_shown() -> None:
    class Picky(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def check(cls, name: str) -> str:
            if name == "secret":
                raise ValueError(f"no {name} please")
            if name == "crash":
                raise RuntimeError("validator is broken")
            return name

    for name in ("secret", "crash"):
        with pytest.raises(EnqueueError) as caught:
            round_trip(Picky, {"name": name})
        assert "please" not in str(caught.value)
        assert "broken" not in str(caught.value)


def test_data_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(EnqueueError, match="'value'"):
        round_trip(Any, ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EnqueueError, match="'value'"):
        round_trip(Any, deep)


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("akadze._json_text._MAX_BYTES", 10_000)
    assert round_trip(str, "x" * 9_000) == "x" * 9_000
    with pytest.raises(EnqueueError, match="argument 'value' is larger than"):
        round_trip(str, "x" * 10_000)
    with pytest.raises(EnqueueError, match="together"):
        Arguments("t", lambda a, b: None).to_json({"a": "x" * 6_000, "b": "x" * 6_000})
    with pytest.raises(ResultNotJson, match="larger than"):
        result_to_json("x" * 10_000)


def test_digits_in_text_are_no_long_number() -> None:
    assert round_trip(Any, {"k": "1" * 10_000}) == {"k": "1" * 10_000}
    assert result_to_json("1" * 10_000) is not None


def test_a_validator_that_changes_a_value_each_time_is_refused() -> None:
    with pytest.raises(EnqueueError, match="another value"):
        round_trip(Annotated[int, BeforeValidator(lambda value: int(value) * 2)], 5)
    assert round_trip(Annotated[str, BeforeValidator(str.strip)], " a ") == "a"


def test_a_nul_is_told_from_the_text_that_spells_one() -> None:
    for text in ("\\u0000", "\\\\u0000", '{"a": "\\u0000"}'):
        assert round_trip(str, text) == text
    for text in ("\\\x00", "\\\\\x00", "\\u0000\x00"):
        with pytest.raises(EnqueueError, match="NUL"):
            round_trip(str, text)


def test_a_class_whose_comparison_raises_does_not_matter() -> None:
    class Odd(BaseModel):
        n: int

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    assert round_trip(Odd, Odd(n=1)).n == 1
