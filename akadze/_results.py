"""What a task body returned, to the JSON that is stored."""

from __future__ import annotations

import inspect
from cmath import isfinite
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema

from akadze._json_text import outside_strings, unstorable

__all__ = ["ResultNotJson", "result_to_json"]


class ResultNotJson(ValueError):
    """The body returned a value that cannot be stored as JSON."""


def result_to_json(value: Any) -> str | None:
    """Return what a body returned as JSON text, None for None.

    Models, dataclasses, datetimes, UUIDs, Decimals, enums, sets and UTF-8 bytes are stored in their JSON form. Raises
    ResultNotJson for what has none, and for NaN, infinities, NUL characters and lone surrogates at any depth.
    """
    kind = type(value)
    if value is None:
        return None
    if kind is bool:
        return "true" if value else "false"
    try:
        if kind is int:
            return str(value)
        if kind is str:
            text = _ANYTHING.to_json(value)
        else:
            if inspect.iscoroutine(value):
                value.close()
                raise ResultNotJson("the task returned a coroutine; make it async def, or await it")
            if isinstance(value, Iterator):
                value = list(value)
            text = _ANYTHING.to_json(value, by_alias=False, warnings=False)
            _refuse_infinite(value, text)
    except ResultNotJson:
        raise
    except PydanticSerializationError as error:
        words = str(error)
        reason = f" ({words})" if words.startswith("Unable to serialize unknown type") else ""
        raise ResultNotJson(f"a result of type {kind.__name__} has no JSON form{reason}") from None
    except ValueError:
        raise ResultNotJson(f"a result of type {kind.__name__} has no JSON form") from None
    except Exception as error:  # a serializer of the user's may raise anything
        raise ResultNotJson(f"a result of type {kind.__name__} has no JSON form") from error
    if (problem := unstorable(text)) is not None:
        raise ResultNotJson(f"the result {problem}")
    return text.decode()


#: Writes NaN as NaN where it can, so that it is seen; models write null and are looked at again.
_ANYTHING = SchemaSerializer(
    core_schema.any_schema(), core_schema.CoreConfig(ser_json_inf_nan="constants", ser_json_bytes="utf8")
)
_CONSTANTS = (b"NaN", b"Infinity")


def _refuse_infinite(value: Any, text: bytes) -> None:
    suspect = any(constant in text for constant in _CONSTANTS)
    if not suspect and b"null" not in text:
        return
    if suspect and any(constant in outside_strings(text) for constant in _CONSTANTS):
        raise _infinite()
    for part in _parts(_ANYTHING.to_python(value, mode="python", warnings=False)):
        if isinstance(part, Decimal):
            finite = part.is_finite()
        elif isinstance(part, Iterator):
            raise ResultNotJson("the result holds an iterator, in which a null may have been NaN; return a list")
        else:
            finite = not isinstance(part, (float, complex)) or isfinite(part)
        if not finite:
            raise _infinite()


def _infinite() -> ResultNotJson:
    return ResultNotJson("the result holds NaN or an infinity, which JSON cannot hold")


def _parts(value: Any) -> Iterator[Any]:
    """Every value inside a result, keys included; a model is a mapping here, an enum's member what it stands for."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Enum):
            part = part.value
        if isinstance(part, Mapping):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, (list, tuple, set, frozenset, deque)):
            waiting += part
        else:
            yield part
