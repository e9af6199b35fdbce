"""Contract, section 3: what a task function may be, and what of it a job can give."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from akadze._arguments import Arguments
from akadze.errors import AkadzeError, EnqueueError


class Address(BaseModel):
    street: str
    tags: list[str] = []


Alias = list[Address]


class Service:
    def method(self, a: Address, n: int = 2) -> int:
        return n

    async def later(self, a: Address) -> int:
        return 1

    def __call__(self, n: int) -> int:
        return n

    @staticmethod
    def static(n: int) -> int:
        return n

    @classmethod
    def made(cls, n: int) -> int:
        return n


class Later:
    async def __call__(self, n: int) -> int:
        return n


def passing(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def text_annotations(a: Address, more: Alias, n: int | None = None) -> Any:
    return a, more, n


@pytest.mark.parametrize("fn", [text_annotations, passing(text_annotations), passing(passing(text_annotations))])
def test_annotations_written_as_text_are_resolved(fn: Callable[..., Any]) -> None:
    arguments = Arguments("t", fn)
    back = arguments.from_json(arguments.to_json({"a": Address(street="s"), "more": [{"street": "o"}]}))
    assert fn(**back) == (Address(street="s"), [Address(street="o")], None)
    with pytest.raises(EnqueueError):
        arguments.to_json({"a": 5, "more": []})
    with pytest.raises(EnqueueError, match="missing"):
        arguments.to_json({"a": Address(street="s")})


@pytest.mark.parametrize(
    ("fn", "given", "result", "is_async"),
    [
        (Service().method, {"a": {"street": "s"}}, 2, False),
        (passing(Service().method), {"a": {"street": "s"}, "n": 4}, 4, False),
        (Service().later, {"a": {"street": "s"}}, 1, True),
        (Service(), {"n": "3"}, 3, False),
        (Later(), {"n": "3"}, 3, True),
        (Service.static, {"n": "3"}, 3, False),
        (Service.made, {"n": "3"}, 3, False),
        (functools.partial(Service().method, n=7), {"a": {"street": "s"}}, 7, False),
        (functools.partial(Service().method, Address(street="s")), {"n": "8"}, 8, False),
        (functools.partial(Later()), {"n": 1}, 1, True),
        (functools.partial(Service().later, a=Address(street="s")), {}, 1, True),
        (functools.lru_cache(lambda n: n), {"n": 1}, 1, False),
        (lambda n=1, *, m=2: n + m, {"m": 3}, 4, False),
        (functools.partial(lambda a, /, b: (a, b), 1), {"b": 2}, (1, 2), False),
    ],
)
def test_a_callable_of_any_kind_runs(fn: Any, given: Mapping[str, Any], result: Any, is_async: bool) -> None:
    arguments = Arguments("t", fn)
    assert arguments.is_async is is_async
    back = fn(**arguments.from_json(arguments.to_json(given)))
    assert (asyncio.run(back) if is_async else back) == result


def test_a_wrapper_with_its_own_parameters_is_called_with_them() -> None:
    def inner(session: object, n: int) -> Any:
        return session, n

    @functools.wraps(inner)
    def gives_session(n: int) -> Any:
        return inner("s", n)

    arguments = Arguments("t", gives_session)
    assert gives_session(**arguments.from_json(arguments.to_json({"n": "5"}))) == ("s", 5)
    with pytest.raises(EnqueueError, match="session"):
        arguments.to_json({"n": 5, "session": 1})

    @functools.wraps(inner)
    def adds_one(*args: Any, times: int = 1, **kwargs: Any) -> Any:
        return inner(*args, **kwargs), times

    arguments = Arguments("t", adds_one)
    assert adds_one(**arguments.from_json(arguments.to_json({"n": 5, "session": "x", "times": 3}))) == (("x", 5), 3)


def test_a_wrapped_method_does_not_take_self() -> None:
    class Worker:
        @passing
        def run(self, n: int) -> int:
            return n

    arguments = Arguments("t", Worker().run)
    assert arguments.from_json(arguments.to_json({"n": "1"})) == {"n": 1}


def test_a_class_of_the_function_body_works_in_a_text_annotation() -> None:
    class Local(BaseModel):
        n: int

    def body(value: Local, more: list[Local]) -> None: ...

    arguments = Arguments("t", body)
    back = arguments.from_json(arguments.to_json({"value": {"n": 1}, "more": [Local(n=2)]}))
    assert back == {"value": Local(n=1), "more": [Local(n=2)]}


def test_the_result_annotation_does_not_matter() -> None:
    def body(n: int) -> NotImportedAnywhere: ...  # noqa: F821

    assert Arguments("t", body).from_json('{"n": 1}') == {"n": 1}


def only_by_place(a: int, /) -> None: ...


def star(*args: int) -> None: ...


def stars(a: int, **kwargs: int) -> None: ...


def generator(n: int) -> Iterable[int]:
    yield n


async def async_generator(n: int) -> Any:
    yield n


def unresolvable(a: NotThere) -> None: ...  # noqa: F821


def no_schema(a: asyncio.Event) -> None: ...


def once_only(items: Iterable[int]) -> None: ...


def field_default(n: int = Field(gt=1)) -> None: ...


def annotated_default(n: Annotated[int, Field(default=1)]) -> None: ...


def annotated_factory(n: Annotated[list[int], Field(default_factory=list)] = []) -> None: ...  # noqa: B006


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (only_by_place, "'a' by position only"),
        (star, r"\*args"),
        (stars, r"\*\*kwargs"),
        (passing(star), r"\*args"),
        (generator, "generator"),
        (async_generator, "generator"),
        (functools.partial(generator, 1), "generator"),
        (unresolvable, "'a' cannot be resolved"),
        (no_schema, "'a' cannot be used"),
        (once_only, "'items' is an iterable"),
        (field_default, "'n' is a pydantic Field"),
        (annotated_default, "'n' stands in its annotation"),
        (annotated_factory, "'n' stands in its annotation"),
        (Address, "a class"),
        (5, "type int"),
        (None, "type NoneType"),
        (print, r"\*args"),
        (len, "by position only"),
        (functools.partial(text_annotations, 1, 2, 3, 4), "already bound"),
        (functools.partial(text_annotations, zz=1), "already bound"),
    ],
)
def test_a_signature_that_cannot_work_is_refused_at_registration(fn: Any, says: str) -> None:
    with pytest.raises(AkadzeError, match=says) as caught:
        Arguments("mail.send", fn)
    assert "mail.send" in str(caught.value)
    assert not isinstance(caught.value, EnqueueError)


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Deferred(BaseModel):
    model_config = ConfigDict(defer_build=True)
    n: int


def test_recursive_and_deferred_models_work_together() -> None:
    def body(a: Tree, b: dict[str, Tree], c: Deferred, d: list[Deferred], e: Address | Tree) -> None: ...

    arguments = Arguments("t", body)
    leaf = Tree(name="leaf")
    values = {
        "a": Tree(name="root", children=[leaf]), "b": {"k": leaf}, "c": Deferred(n=1), "d": [Deferred(n=2)], "e": leaf,
    }  # fmt: skip
    assert arguments.from_json(arguments.to_json(values)) == values
