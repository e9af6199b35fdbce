"""Whether a value came back from JSON as what it was."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from akadze._article import with_article

__all__ = ["what_changed"]

_MISSING = object()
#: Types whose == says it all, once the type is the same.
_SIMPLE = frozenset({type(None), bool, int, str, bytes, date, time, timedelta, UUID})


def what_changed(given: Any, back: Any) -> str | None:
    """Say in words how ``back`` differs from ``given`` in type or value; None if it does not. Never shows a value.

    Models and dataclasses are compared by their fields, aware datetimes by their instant, so that the answer does not
    depend on ``__eq__`` of the user's classes or on which tzinfo holds the offset.
    """
    kind = type(given)
    if kind in _SIMPLE and kind is type(back):
        return None if given == back else f"{with_article(kind)} would come back with another value"
    if (isinstance(given, float) and not isfinite(given)) or (isinstance(given, Decimal) and not given.is_finite()):
        return "NaN and infinities cannot be stored"
    if isinstance(given, datetime):
        return _changed_datetime(given, back)
    if kind is not type(back) and not _same_plain_kind(given, back):
        return f"{with_article(kind)} would come back as {with_article(type(back))}"
    if isinstance(given, dict):
        return _changed_mapping(given, back)
    if isinstance(given, (list, tuple, deque)):
        if len(given) != len(back):
            return "items would be lost"
        return next((change for pair in zip(given, back, strict=True) if (change := what_changed(*pair))), None)
    if isinstance(given, BaseModel):
        return _changed_attributes(given, back, kind.model_fields) or _changed_mapping(
            given.model_extra or {}, back.model_extra or {}
        )
    if dataclasses.is_dataclass(given):
        return _changed_attributes(given, back, [field.name for field in dataclasses.fields(given)])
    if given is back or vars(object)["__eq__"] is kind.__eq__:
        return None  # such a class says nothing about equality; the type is right
    return None if _equal(given, back) else f"{with_article(kind)} would come back with another value"


def _changed_mapping(given: Mapping[Any, Any], back: Mapping[Any, Any]) -> str | None:
    if len(given) != len(back):
        return "items would be lost"
    for key, value in given.items():
        other = back.get(key, _MISSING)
        if other is _MISSING:
            return f"a key of type {type(key).__name__} would be changed"
        if change := what_changed(value, other):
            return change
    if not all(type(key) is str for key in given):
        kinds, others = ({type(key) for key in keys} - {str} for keys in (given, back))
        if kinds != others and not all(issubclass(kind, str) and not issubclass(kind, Enum) for kind in kinds ^ others):
            return "keys would come back with another type"
    return None


def _changed_attributes(given: Any, back: Any, names: Iterable[str]) -> str | None:
    for name in names:
        one, other = getattr(given, name, _MISSING), getattr(back, name, _MISSING)
        if change := what_changed(one, other):
            return change
    return None


def _changed_datetime(given: datetime, back: Any) -> str | None:
    if not isinstance(back, datetime):
        return f"{with_article(type(given))} would come back as {with_article(type(back))}"
    if (given.utcoffset() is None) is not (back.utcoffset() is None):
        return "a datetime would gain or lose its offset"
    # A difference, since == between zones is False by definition for the hours that a clock change repeats.
    return None if given - back == timedelta(0) else "a datetime would come back as another instant"


def _same_plain_kind(given: Any, back: Any) -> bool:
    """Subclasses of str, int, float, dict and list that are no Enum come back as the plain type, which is accepted."""
    if isinstance(given, (Enum, bool)):
        return False
    return any(isinstance(given, kind) and type(back) is kind for kind in (str, int, float, dict, list))


def _equal(given: Any, back: Any) -> bool:
    try:
        return bool(given == back)
    except Exception:  # __eq__ of a user's class; what cannot be compared is not known to survive
        return False
