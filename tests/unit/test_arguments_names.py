"""Contract, section 3: names and defaults of arguments, and how they compare with stored ones."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import (
    BaseModel,
)

from akadze._arguments import Arguments, ArgumentsInvalid
from akadze.errors import EnqueueError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    tags: list[str] = []


def taking(annotation: Any) -> Arguments:
    def body(value: object) -> None: ...

    body.__annotations__["value"] = annotation
    return Arguments("t", body)


def test_names_are_checked_at_enqueue() -> None:
    def body(a: int, *, b: str = "x") -> None: ...

    arguments = Arguments("mail.send", body)
    assert json.loads(arguments.to_json({"a": 1})) == {"a": 1}
    assert json.loads(arguments.to_json(MappingProxyType({"a": "1", "b": "y"}))) == {"a": 1, "b": "y"}
    with pytest.raises(EnqueueError, match=r"task 'mail.send': argument 'a' is missing"):
        arguments.to_json({})
    with pytest.raises(EnqueueError, match="no parameter 'c', it takes a, b"):
        arguments.to_json({"a": 1, "c": 2})
    with pytest.raises(EnqueueError, match="no parameter"):
        arguments.to_json({"a": 1, 5: 2})  # type: ignore[dict-item]
    for wrong in (None, 5, "a", [("a", 1)]):
        with pytest.raises(EnqueueError, match="not a mapping"):
            arguments.to_json(wrong)  # type: ignore[arg-type]


def test_a_task_without_parameters_takes_nothing() -> None:
    arguments = Arguments("t", lambda: None)
    assert arguments.to_json({}) == "{}"
    assert arguments.from_json("{}") == {}
    with pytest.raises(EnqueueError, match="no arguments"):
        arguments.to_json({"a": 1})
    for wrong in ([], "", None):
        with pytest.raises(EnqueueError, match="not a mapping"):
            arguments.to_json(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["priority", "session", "self", "cls", "json", "schema", "model_config", "validate", "copy", "dict", "fields",
     "model_fields", "construct", "task", "given", "_private", "__dunder", "žluť", "args", "kwargs", "meta"],
)  # fmt: skip
def test_a_parameter_may_have_any_name(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def body({name}: list[int], other: int = 3): ...", space)
    arguments = Arguments("t", space["body"])
    assert arguments.from_json(arguments.to_json({name: ["1"]})) == {name: [1]}
    with pytest.raises(EnqueueError, match=name):
        arguments.to_json({})


def test_stored_arguments_of_another_signature_are_invalid() -> None:
    def body(a: int) -> None: ...

    arguments = Arguments("t", body)
    for text in ('{"a": "x"}', '{"a": 1, "b": 2}', "{}", "[]", "5", "{", '{"a": null}'):
        with pytest.raises(ArgumentsInvalid, match="task 't'"):
            arguments.from_json(text)
    assert arguments.from_json(b'{"a": 1}') == {"a": 1}


def test_a_mutable_default_is_fresh_in_each_run() -> None:
    def body(tags: list[str] = ["a"], where: Address = Address(street="s"), n: int = 5) -> None: ...  # noqa: B006, B008

    arguments = Arguments("t", body)
    assert arguments.to_json({}) == "{}"
    first, second = arguments.from_json("{}"), arguments.from_json("{}")
    first["tags"].append("b")
    first["where"].tags.append("c")
    assert second == {"tags": ["a"], "where": Address(street="s")}
    assert arguments.from_json("{}") == second
    body(**second)


def test_a_default_of_another_type_is_given_as_it_is() -> None:
    def body(n: int = "none given", m: list[int] = None) -> Any:  # type: ignore[assignment] # noqa: RUF013
        return n, m

    arguments = Arguments("t", body)
    assert body(**arguments.from_json(arguments.to_json({}))) == ("none given", None)


def test_a_default_that_cannot_be_copied_is_shared() -> None:
    import threading

    lock = threading.Lock()

    def body(n: int, lock: Any = lock) -> Any:
        return lock

    arguments = Arguments("t", body)
    assert body(**arguments.from_json(arguments.to_json({"n": 1}))) is lock
    assert not arguments.differing({"n": 1}, {"n": 1})


def test_an_argument_mutated_in_one_run_is_not_seen_by_the_next() -> None:
    arguments = taking(Address)
    text = arguments.to_json({"value": Address(street="s")})
    arguments.from_json(text)["value"].tags.append("x")
    assert arguments.from_json(text)["value"].tags == []


def test_arguments_are_the_same_in_their_stored_form() -> None:
    def body(
        d: datetime, u: UUID, m: Decimal, day: date, td: timedelta, e: Color, t: tuple[int, str], o: int | None = None
    ) -> None: ...

    arguments = Arguments("t", body)
    values = {
        "d": datetime(2026, 1, 2, 3, 4, 5, 1, timezone(timedelta(hours=5, minutes=45))),
        "u": uuid4(), "m": Decimal("0.10"), "day": date(2026, 1, 1), "td": timedelta(seconds=1), "e": Color.RED,
        "t": (1, "x"),
    }  # fmt: skip
    stored = json.loads(arguments.to_json(values))
    assert not arguments.differing(stored, values)
    assert not arguments.differing(stored, values | {"o": None})
    assert not arguments.differing(stored | {"o": None}, values)
    assert arguments.differing(stored | {"o": 1}, values)
    for name, other in {"m": Decimal("0.2"), "e": Color.BLUE, "t": (2, "x"), "u": uuid4(), "o": 0}.items():
        assert arguments.differing(stored, values | {name: other})
    with pytest.raises(EnqueueError, match="no parameter"):
        arguments.differing(stored, values | {"zz": 1})


def test_comparison_knows_what_jsonb_does_to_numbers() -> None:
    arguments = taking(Any)
    assert not arguments.differing({"value": 10**300}, {"value": 1e300})
    assert not arguments.differing({"value": [10**22]}, {"value": [1e22]})
    assert arguments.differing({"value": 1}, {"value": True})
    assert arguments.differing({"value": 0}, {"value": None})
    assert arguments.differing({"value": 10**30}, {"value": 10**30 + 1})
    assert arguments.differing({"other": 1}, {"value": 1})
