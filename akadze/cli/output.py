"""How rows are shown: tables for a person at a terminal, lines for a pipe, JSON for a program."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TextIO

import typer

#: A value: None, a bool, a number, text, Json, an instant, or a tuple of texts (its key is repeated in a line).
Row = Mapping[str, Any]

_STYLES: Final = {
    "queued": "cyan",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
}
#: Columns that a narrow terminal does not break.
_WHOLE: Final = ("id", "state", "attempt", "when", "started_at", "heartbeat_at")

#: Columns of a terminal. In fewer, tables would lose their values; such a terminal breaks the lines itself.
_NARROWEST: Final = 20
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


class Json(str):
    """Text that is JSON already, and is passed on digit for digit."""

    __slots__ = ()


def show(
    rows: Sequence[Row],
    *,
    as_json: bool,
    empty: str,
    table: Sequence[Row] | None = None,
    below: Sequence[str] = (),
    note: str | None = None,
) -> None:
    """Print a list.

    ``empty``, ``table``, ``below`` and ``note`` are for people: what to say of no rows, narrower rows, the columns that
    leave a table that is too wide, first one first, for a line below their row, and a word below all.
    """
    if as_json:
        write(_document(rows) + "\n")
    elif not _for_person():
        write("".join(f"{line(row)}\n" for row in rows))
    elif rows:
        _print_table(table or rows, below, note)
    else:
        write(f"{empty}\n")


def show_one(row: Row, *, as_json: bool, sentence: str | None = None, fields: Row | None = None) -> None:
    """Print one row; for people the sentence that says what was done, or the fields from top to bottom."""
    if as_json:
        write(_document(row) + "\n")
    elif not _for_person():
        write(f"{line(row)}\n")
    elif sentence is not None:
        write(f"{printable(sentence)}\n")
    else:
        _print_fields(fields or row)


def write(text: str) -> None:
    """Write to stdout. Exits in silence when its reader has gone away, and with 1 when it cannot be written to."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        silence(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(0) from None
        fail(f"the output cannot be written: {error.strerror or error}")


def fail(message: str, code: int = 1) -> NoReturn:
    """Print one line on stderr and exit: with 2 for wrong use, with 1 for a failure."""
    print_error(message)
    raise typer.Exit(code)


def print_error(message: str) -> None:
    from akadze._urls import without_password

    try:
        sys.stderr.write(f"error: {printable(without_password(message))}\n")
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Let what is still written to a stream without a reader vanish, at the interpreter's exit too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def line(row: Row) -> str:
    """Return a row as ``key=value key=value``, on one line whatever it holds.

    Nothing stands for None. Text that is empty, or has spaces, quotes, equals signs, backslashes or characters that are
    not printable, is written as a JSON string.
    """
    return " ".join(f"{key}={_quoted(value)}" for key, value in _pairs(row))


def printable(text: str) -> str:
    """Return the text with what could move a cursor or break a line escaped."""
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _pairs(row: Row) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, tuple):
            yield from ((key, item) for item in value)
        else:
            yield key, value


def _quoted(value: Any) -> str:
    if value is None:
        return ""
    text = _text(value)
    if text and text.isprintable() and not any(character in ' "=\\' for character in text):
        return text
    return printable(json.dumps(text, ensure_ascii=False))


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _document(value: Any) -> str:
    """One JSON document, an object of a list on a line of its own."""
    if isinstance(value, Json):
        # As in all other values: a stream that is not UTF-8 would write them in a way that JSON does not know.
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_document(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        items = [_document(item) for item in value]
        if value and isinstance(value[0], Mapping):
            return "[\n" + ",\n".join(items) + "\n]"
        return "[" + ", ".join(items) + "]"
    if isinstance(value, datetime):
        return json.dumps(_text(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def _for_person() -> bool:
    return sys.stdout.isatty()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return shown_time(value)
    if isinstance(value, tuple):
        return ", ".join(map(printable, value))
    return printable(_text(value))


def shown_time(instant: datetime) -> str:
    """Return an instant in UTC, to the second, for people."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _print_table(rows: Sequence[Row], below: Sequence[str], note: str | None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # A column that is empty in every row is left out: terminals are narrow.
    keys = [key for key in rows[0] if any(row[key] not in (None, (), "{}") for row in rows)]
    beside, moved = _fitting(rows, keys, below)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for key in beside:
        number = all(isinstance(row[key], int | float | None) and not isinstance(row[key], bool) for row in rows)
        table.add_column(
            key, justify="right" if number else "left", overflow="fold", no_wrap=bool(below) or key in _WHOLE
        )
    for row in rows:
        table.add_row(*(Text(_cell(row[key]), style=_style(key, row[key])) for key in beside))
    _print(table, [_beneath(row, moved) for row in rows] if moved else [], note)


def _fitting(rows: Sequence[Row], keys: Sequence[str], below: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which columns stand side by side in this terminal, and which go below."""
    from rich.cells import cell_len

    room = _console().width
    widths = {key: max(len(key), *(cell_len(_cell(row[key])) for row in rows)) + 2 for key in keys}
    beside = list(keys)
    for key in below:
        if sum(widths[key] for key in beside) <= room:
            break
        if key in beside:
            beside.remove(key)
    return beside, [key for key in keys if key not in beside]


def _beneath(row: Row, keys: Sequence[str]) -> list[str]:
    from textwrap import wrap

    text = "  ".join(f"{key} {_cell(row[key])}" for key in keys if row[key] not in (None, (), "{}"))
    indent = " " * 4
    return wrap(text, _console().width - 1, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _print_fields(row: Row) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in row.items():
        if value in (None, ()):
            continue
        text = "\n".join(map(printable, value)) if isinstance(value, tuple) else _cell(value)
        table.add_row(key, Text(text, style=_style(key, value)))
    _print(table)


def _style(key: str, value: Any) -> str:
    if key in ("paused", "expired", "new"):
        return "yellow" if value else ""
    return _STYLES.get(value, "") if key == "state" else ""


def _print(table: Any, beneath: Sequence[Sequence[str]] = (), note: str | None = None) -> None:
    """Print a table; with lines to stand beneath its rows, each row of it is one line."""
    console = _console()
    if beneath:
        console.width = max(console.width, console.measure(table).maximum)
    with console.capture() as capture:
        console.print(table)
    lines = [text.rstrip() for text in capture.get().splitlines()]
    # Below the rows there is one empty line.
    first = len(lines) - 1 - len(beneath)
    for number in reversed(range(len(beneath))):
        lines[first + number + 1 : first + number + 1] = beneath[number]
    if note is not None:
        lines.append(note)
    write("".join(f"{text}\n" for text in lines))


def _console() -> Any:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, _NARROWEST)
    return console
