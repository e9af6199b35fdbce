"""What PostgreSQL and Python can hold of a JSON text."""

from __future__ import annotations

import json
import re

__all__ = ["SHORT", "outside_strings", "unstorable"]

#: A jsonb text may have 255 MiB, but its binary form can be larger than the text.
_MAX_BYTES = 100_000_000
#: Python reads and writes integers of at most this many digits, in JSON too.
_MAX_DIGITS = 4300
#: A text of so many bytes can only have a NUL wrong with it.
SHORT = _MAX_DIGITS

#: Values in one text. PostgreSQL asks for a gigabyte at once, and fails, where one list or mapping has twice as many.
_MAX_VALUES = 2**23
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')

#: An escaped NUL, told from the text backslash-u-0000 by the number of backslashes.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_LONG_NUMBER = re.compile(rb"\d{%d}" % (_MAX_DIGITS + 1))


def unstorable(text: bytes) -> str | None:
    """Say why this JSON text cannot be stored and read back; None if it can."""
    if b"\\u0000" in text and _NUL.search(text) is not None:
        return "holds a NUL character, which PostgreSQL cannot store in text"
    if len(text) > _MAX_DIGITS:
        if len(text) > _MAX_BYTES:
            return "is larger than 100 MB as JSON; keep the data elsewhere and pass a reference"
        if _LONG_NUMBER.search(text) is not None and _has_long_number(text):
            return f"holds an integer of more than {_MAX_DIGITS} digits; pass it as text"
        if text.count(b",") >= _MAX_VALUES and outside_strings(text).count(b",") >= _MAX_VALUES:
            return f"holds more than {_MAX_VALUES} values; keep the data elsewhere and pass a reference"
    return None


def outside_strings(text: bytes) -> bytes:
    """Return what is left of a JSON text without its strings."""
    return _STRING.sub(b"", text)


def _has_long_number(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False
