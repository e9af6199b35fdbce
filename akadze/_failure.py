"""The entry that a failed run leaves in its job's errors. Whatever the exception is like, there is one."""

from __future__ import annotations

import json
import re
import traceback
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

from akadze._urls import without_password

__all__ = ["failure", "failure_in_ascii", "name_of", "place_of"]

#: The message as JSON, in bytes of UTF-8.
_MAX_MESSAGE = 2048
#: Of a longer text only so many characters are looked at, at either end.
_LOOK_AT = 4096
_MAX_NAME = 200
#: Causes and group members that are walked, and that are named (the nearest ones, and the last).
_MAX_WALK = 1000
_MAX_NAMED = 8
_CUT = " […] "
#: Frames that are shown of where an error was raised: as many of its outermost as of its innermost.
_MOST_FRAMES = 5
_HERE = str(Path(__file__).parent)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def failure(error: BaseException, now: datetime) -> dict[str, str]:
    """Return the entry: type, message with its causes, time. Below 4 KiB as JSON, without passwords in URLs.

    Nothing that the exception's own code does (raise, return no text, recurse, point to itself) gets out of here.
    """
    return {"error": name_of(error), "message": _message(error), "at": now.isoformat()}


def failure_in_ascii(entry: dict[str, str]) -> dict[str, str]:
    """Return an entry with all other characters escaped, for a database whose encoding does not have them."""
    return {name: _escaped(text) for name, text in entry.items()}


def _escaped(text: str) -> str:
    plain = text.encode("ascii", "backslashreplace").decode()
    return plain if _size(plain) <= _MAX_MESSAGE else _cut(plain, _MAX_MESSAGE).replace(_CUT, " [...] ")


def name_of(error: BaseException) -> str:
    """Return the name of the exception's class."""
    name = type.__dict__["__name__"].__get__(type(error))
    return _clean(name[:_MAX_NAME])


def place_of(error: BaseException) -> str:
    """Return where an error was raised, for the log: the frames that are not akadze's own, without its message.

    The message may hold arguments or results: Python and databases quote the values that they complain of.
    """
    try:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
        lines = traceback.format_list(frames)
    except BaseException:  # __traceback__ is an attribute that a class can replace
        return ""
    if len(lines) > 2 * _MOST_FRAMES:
        lines[_MOST_FRAMES:-_MOST_FRAMES] = ["  […]\n"]
    return "".join(lines).rstrip()


def _message(error: BaseException) -> str:
    others = list(islice(_others(error), _MAX_WALK))
    parts = [_text(error)]
    if len(others) > _MAX_NAMED:
        left_out = len(others) - _MAX_NAMED
        shown = others[: _MAX_NAMED - 1]
        parts += [f"{how} {name_of(other)}: {_text(other)}" for how, other in shown]
        parts.append(f"({left_out} more left out)")
        others = others[-1:]
    parts += [f"{how} {name_of(other)}: {_text(other)}" for how, other in others]
    return "\n".join(_fitted(parts))


def _others(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The members and causes of an exception, then theirs, each once."""
    waiting, seen = deque([error]), {id(error)}
    while waiting:
        for how, other in _next(waiting.popleft()):
            if isinstance(other, BaseException) and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
                yield how, other


def _next(error: BaseException) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    try:
        if isinstance(error, BaseExceptionGroup):
            found += (("member", member) for member in islice(error.exceptions, _MAX_WALK))
        if error.__cause__ is not None:
            found.append(("caused by", error.__cause__))
        elif not error.__suppress_context__:
            found.append(("while handling", error.__context__))
    except BaseException:  # noqa: S110 - attributes that a class has replaced with ones that raise
        pass
    return found


def _text(error: BaseException) -> str:
    try:
        text = str.__str__(str(error))
    except BaseException as problem:  # __str__ is the user's code, and may raise SystemExit
        return f"(its text cannot be shown: __str__ raised {name_of(problem)})"
    if len(text) > 2 * _LOOK_AT:
        # Whole words, so that no half of a password is left at the edge.
        head, tail = text[:_LOOK_AT], text[-_LOOK_AT:]
        text = f"{_whole_words(head)}{_CUT}{_whole_words(tail[::-1])[::-1]}"
    return _clean(without_password(text))


def _whole_words(text: str) -> str:
    edge = max(text.rfind(space, _LOOK_AT - 512) for space in " \n\t")
    return text[:edge] if edge > 0 else text


def _clean(text: str) -> str:
    return _UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _fitted(parts: list[str]) -> list[str]:
    """Cut the longest parts until all fit; the first one may have half of the room however many others there are."""
    room = _MAX_MESSAGE - 2 * len(parts)
    sizes = [_size(part) for part in parts]
    if sum(sizes) <= room:
        return parts
    fitted = list(parts)
    own = min(sizes[0], max(room // 2, room - sum(sizes[1:])))
    fitted[0] = _cut(parts[0], own)
    room -= own
    by_size = sorted(range(1, len(parts)), key=sizes.__getitem__)
    for place, number in enumerate(by_size):
        share = room // (len(by_size) - place)
        fitted[number] = _cut(parts[number], share)
        room -= min(sizes[number], share)
    return fitted


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


def _cut(text: str, room: int) -> str:
    """Keep head and tail of the text within so many bytes of JSON."""
    if _size(text) <= room:
        return text
    half = (room - _size(_CUT)) // 2
    return _head(text, half) + _CUT + _head(text[::-1], half)[::-1]


def _head(text: str, room: int) -> str:
    text = text[: max(room, 0)]
    while (over := _size(text) - room) > 0:
        text = text[: -max(over // 6, 1)]  # no character takes more than six bytes
    return text
