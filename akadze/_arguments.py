"""A task's arguments, to and from the JSON that is stored."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from inspect import Parameter
from typing import Any, cast, get_args
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator, core_schema

from akadze._article import with_article
from akadze._json_text import SHORT, unstorable
from akadze._results import ResultNotJson, result_to_json
from akadze._round_trip import what_changed
from akadze._signature import is_async, read_parameters
from akadze.errors import AkadzeError, EnqueueError

__all__ = ["Arguments", "ArgumentsInvalid", "ResultNotJson", "result_to_json"]

#: Core schemas whose values always come back from JSON as they were; all others are tried with each value.
_PLAIN = frozenset({"none", "bool", "int", "str", "uuid"})
_SHARED_DEFAULTS = (
    type(None), bool, int, float, complex, str, bytes, date, datetime, time, timedelta, Decimal, UUID, Enum, type,
)  # fmt: skip


class ArgumentsInvalid(ValueError):
    """The stored arguments no longer fit the task's signature."""


class Arguments:
    """The arguments of one task: checks and writes them at enqueue, reads and checks them at run.

    Raises AkadzeError if ``fn`` cannot be called with arguments by name, or one of its annotations has no JSON form.
    """

    __slots__ = (
        "_copied", "_default_json", "_defaults", "_field_names", "_names", "_plain", "_serializer", "_task",
        "_validator", "is_async",
    )  # fmt: skip

    def __init__(self, task_name: str, fn: Callable[..., Any]) -> None:
        parameters = read_parameters(task_name, fn)
        self._task = task_name
        self._names = frozenset(parameters)
        self.is_async = is_async(fn)
        self._defaults = {n: p.default for n, p in parameters.items() if p.default is not Parameter.empty}
        self._copied = {n: d for n, d in self._defaults.items() if _needs_copy(d)}
        self._default_json: dict[str, Any] | None = None
        fields: dict[str, core_schema.TypedDictField] = {}
        definitions: dict[str, core_schema.CoreSchema] = {}
        for name, parameter in parameters.items():
            schema = _schema(task_name, name, parameter.annotation)
            if schema["type"] == "definitions":
                definitions.update({cast(Any, d)["ref"]: d for d in schema["definitions"]})
                schema = schema["schema"]
            if schema["type"] == "default":
                raise AkadzeError(
                    f"task {task_name!r}: the default of {name!r} stands in its annotation; write it after the = sign"
                )
            fields[name] = core_schema.typed_dict_field(schema, required=name not in self._defaults)
        self._plain = not definitions and all(_is_plain(field["schema"]) for field in fields.values())
        whole: core_schema.CoreSchema = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
        if definitions:
            whole = core_schema.definitions_schema(whole, list(definitions.values()))
        self._field_names = frozenset(_field_names(whole))
        self._validator = SchemaValidator(whole)
        self._serializer = SchemaSerializer(whole)

    def to_json(self, given: Mapping[str, Any]) -> str:
        """Check arguments as an enqueue gives them and return the JSON text to store; omitted ones are left out.

        Raises EnqueueError if they do not fit the signature, or a value would not come back at run as it was given.
        The message names the parameter, never a value.
        """
        if not self._names and not given and isinstance(given, Mapping):
            return "{}"
        try:
            checked = self._validator.validate_python(given)
        except Exception as error:
            raise self._misfit(error) from _cause(error)
        return self._stored(checked)

    def _misfit(self, error: Exception) -> EnqueueError:
        if isinstance(error, ValidationError):
            return EnqueueError(f"task {self._task!r}: {self._explained(error)}")
        # A validator of the user's may raise anything.
        return EnqueueError(f"task {self._task!r}: {type(error).__name__} while its arguments were checked")

    def _stored(self, checked: dict[str, Any]) -> str:
        try:
            text = self._written(checked)
        except (ValueError, RecursionError):
            # Written one by one only to name the parameter; the driver's words could show the value.
            raise EnqueueError(f"task {self._task!r}: {self._unwritable(checked)}") from None
        if (problem := unstorable(text)) is not None:
            raise EnqueueError(f"task {self._task!r}: {self._where(checked, problem)}")
        if not self._plain:
            self._check_round_trip(checked, text)
        return text.decode()

    def all_to_json(self, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """The same for many, at less cost for each. The EnqueueError says which item it is about, counted from 0."""
        if not self._plain:
            return [self._item_to_json(number, item) for number, item in enumerate(items)]
        validate, write = self._validator.validate_python, self._serializer.to_json
        texts = []
        for number, item in enumerate(items):
            # Each item is checked once: a value that is an iterator is used up by that.
            try:
                checked = validate(item)
            except Exception as error:
                _check_item(number, item)
                raise EnqueueError(f"item {number}: {self._misfit(error)}") from _cause(error)
            try:
                text = write(checked)
                # Most texts hold nothing that has to be looked at.
                suspect = len(text) > SHORT or b"\\u0000" in text
                texts.append(self._item_stored(number, checked) if suspect else text.decode())
            except (ValueError, RecursionError):
                texts.append(self._item_stored(number, checked))
        return texts

    def _item_stored(self, number: int, checked: dict[str, Any]) -> str:
        try:
            return self._stored(checked)
        except EnqueueError as error:
            raise EnqueueError(f"item {number}: {error}") from None

    def _item_to_json(self, number: int, item: Mapping[str, Any]) -> str:
        _check_item(number, item)
        try:
            return self.to_json(item)
        except EnqueueError as error:
            raise EnqueueError(f"item {number}: {error}") from _cause(error)

    def from_json(self, text: str | bytes) -> dict[str, Any]:
        """Return stored arguments as keyword arguments of the declared types, every object in them a new one.

        Raises ArgumentsInvalid if they do not fit the signature (any more).
        """
        try:
            arguments = self._validator.validate_json(text, by_name=True, by_alias=False)
        except ValidationError as error:
            raise ArgumentsInvalid(f"task {self._task!r}: {self._explained(error)}") from None
        except Exception as error:  # a validator of the user's may raise anything
            raise ArgumentsInvalid(f"task {self._task!r}: its arguments could not be read") from error
        for name, default in self._copied.items():
            if name not in arguments:
                arguments[name] = copy.deepcopy(default)
        return cast("dict[str, Any]", arguments)

    def differing(self, stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
        """Return the names of which a job's stored arguments are not those given, defaults filled in on both sides.

        Raises EnqueueError if the given ones could not have been enqueued.
        """
        if self._default_json is None:
            self._default_json = dict(self._json_defaults())
        one, other = self._default_json | dict(stored), self._default_json | json.loads(self.to_json(given))
        return sorted(
            [name for name in one.keys() & other.keys() if not _same_json(one[name], other[name])]
            + list(one.keys() ^ other.keys())
        )

    def _written(self, checked: Mapping[str, Any]) -> bytes:
        if self._plain:  # has no aliases and one form, and the options alone would take most of the time
            return self._serializer.to_json(checked)
        # By field names and without computed fields, so that the text can be read back whatever aliases a model has.
        return self._serializer.to_json(checked, by_alias=False, round_trip=True, warnings="error")

    def _check_round_trip(self, checked: dict[str, Any], text: bytes) -> None:
        try:
            back = self._validator.validate_json(text, by_name=True, by_alias=False)
        except ValidationError as error:
            for name, value in checked.items():
                if (change := what_changed(value, value)) is not None:  # NaN is written as null, which fails elsewhere
                    raise EnqueueError(f"task {self._task!r}: argument {name!r}: {change}") from None
            raise EnqueueError(f"task {self._task!r}: read back from JSON, {self._explained(error)}") from None
        except Exception as error:  # a validator of the user's may raise anything
            raise EnqueueError(
                f"task {self._task!r}: {type(error).__name__} while its arguments were read back from JSON"
            ) from error
        for name, value in checked.items():
            if (change := what_changed(value, back[name])) is not None:
                raise EnqueueError(
                    f"task {self._task!r}: argument {name!r} does not survive JSON: {change}; "
                    "give a value of the annotated type, or annotate the parameter with the value's type"
                )

    def _unwritable(self, checked: Mapping[str, Any]) -> str:
        for name, value in checked.items():
            try:
                self._written({name: value})
            except PydanticSerializationError as error:
                words = str(error)
                reason = words[0].lower() + words[1:] if words.startswith("Unable to serialize unknown type") else ""
                return _cannot_store(name, reason)
            except (ValueError, RecursionError):
                return _cannot_store(name, "")
        return "the arguments cannot be stored as JSON"

    def _where(self, checked: Mapping[str, Any], problem: str) -> str:
        for name, value in checked.items():
            if unstorable(self._written({name: value})) is not None:
                return f"argument {name!r} {problem}"
        return f"the arguments together: {problem}"

    def _explained(self, error: ValidationError) -> str:
        problems = []
        for detail in error.errors(include_url=False, include_input=False)[:5]:
            name, *path = detail["loc"] or ("",)
            if detail["type"] == "missing" and not path:
                problems.append(f"argument {name!r} is missing")
            elif detail["type"] in ("extra_forbidden", "invalid_key") and not path:
                known = ", ".join(sorted(self._names)) or "no arguments"
                problems.append(f"there is no parameter {str(name)[:100]!r}, it takes {known}")
            elif detail["type"] == "json_invalid":
                problems.append("the arguments are not JSON, or nested more than 200 levels deep")
            elif not detail["loc"]:
                problems.append("the arguments are not a mapping of names to values")
            else:
                # A part of the path may be a key of the user's data; fields of models and places are not.
                shown = [str(p) if isinstance(p, int) or p in self._field_names else "…" for p in path]
                at = f" (at {'.'.join(shown)})" if shown else ""
                problems.append(f"argument {name!r}{at}: {_said(detail['type'], detail['msg'], detail.get('ctx', {}))}")
        return "; ".join(problems)

    def _json_defaults(self) -> Iterator[tuple[str, Any]]:
        for name, default in self._defaults.items():
            try:
                text = self._serializer.to_json({name: default}, by_alias=False, round_trip=True, warnings=False)
            except Exception:  # noqa: S112 - a default without JSON form is only ever left out, on both sides
                continue
            yield name, json.loads(text)[name]


def _cannot_store(name: str, reason: str) -> str:
    why = (
        reason or "it holds bytes that are not UTF-8, a lone surrogate, itself, or another value that JSON cannot hold"
    )
    return f"argument {name!r} cannot be stored as JSON: {why}"


def _schema(task: str, name: str, annotation: Any) -> core_schema.CoreSchema:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        if not isinstance(adapter.core_schema, dict):
            adapter.rebuild(force=True)  # a model with defer_build
        schema = adapter.core_schema
        SchemaValidator(schema)
    except Exception as error:  # pydantic's errors for types have no common base, and users' types add their own
        raise AkadzeError(
            f"task {task!r}: the annotation of {name!r} cannot be used ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}); use a type that pydantic can validate"
        ) from error
    if any(node.get("type") == "generator" for node in _nodes(schema)):
        raise AkadzeError(
            f"task {task!r}: the annotation of {name!r} is an iterable that can be read only once; use list[...]"
        )
    return schema


def _check_item(number: int, item: object) -> None:
    if not isinstance(item, Mapping):
        raise EnqueueError(
            f"item {number} is {with_article(type(item))}: each item is a mapping of argument names to values"
        )


def _cause(error: Exception) -> BaseException | None:
    """Return what an EnqueueError shows as its cause: nothing of pydantic's, whose words hold values."""
    if isinstance(error, EnqueueError):
        return error.__cause__
    return None if isinstance(error, ValidationError) else error


def _is_plain(schema: Any) -> bool:
    if "serialization" in schema:
        return False
    kind = schema["type"]
    if kind in ("nullable", "default"):
        return _is_plain(schema["schema"])
    if kind == "list":
        return _is_plain(schema.get("items_schema", {"type": "any"}))
    return kind in _PLAIN


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every dict inside a core schema. Classes and functions in it are not entered."""
    waiting, seen = [schema], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, (list, tuple)):
            waiting += node


def _field_names(schema: Any) -> Iterator[str]:
    for node in _nodes(schema):
        fields = node.get("fields") if node.get("type") in ("model-fields", "typed-dict", "dataclass-args") else None
        if isinstance(fields, dict):
            yield from fields
        elif isinstance(fields, list):
            yield from (field["name"] for field in fields)


def _said(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """pydantic's words without those that quote a part of the value, or that come from a validator of the user's."""
    if kind in ("value_error", "assertion_error") or kind not in _KINDS:
        return f"a validator refuses it ({kind})"
    if "tag" in context:
        return f"its tag should be one of {context.get('expected_tags')}"
    if "error" in context or "encoding_error" in context:
        return message.split(",")[0].split(":")[0]
    return message


_KINDS = frozenset(get_args(core_schema.ErrorType))


def _needs_copy(default: Any) -> bool:
    if isinstance(default, _SHARED_DEFAULTS):
        return False
    try:
        copy.deepcopy(default)
    except Exception:  # what cannot be copied (a lock, a client) is shared, as in any Python call
        return False
    return True


def _same_json(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, and 1e300 is what jsonb gives back for it, an integer."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) is not isinstance(other, float) and isinstance(one, (int, float)):
        try:
            return float(one) == float(other)
        except (OverflowError, TypeError, ValueError):
            return False
    return bool(one == other)
