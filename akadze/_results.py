"""What a task body returned, to the JSON that is stored."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema

from akadze._json_text import unstorable

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
            text = _ANYTHING.to_json(value, by_alias=False, warnings="none")
            if any(token in text for token in (b"null", b"NaN", b"Infinity")) and not _is_finite(value):
                raise ResultNotJson("the result holds NaN or an infinity, which JSON cannot hold")
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


def _is_finite(value: Any) -> bool:
    return _all_finite(_ANYTHING.to_python(value, mode="python", warnings="none"))


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, Mapping):
        return all(_all_finite(key) and _all_finite(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_all_finite, value))
    return True
