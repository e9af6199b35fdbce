"""Contract, section 14: rows as lines, JSON and tables."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from akadze.cli import output
from tests.cli.conftest import Cli, Table
from tests.cli.test_errors import MIGRATE, READING, WRITING
from tests.cli.test_workers import add_worker
from tests.families import FULL

WORD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^ "]*)(?: |$)')


def parsed(line: str) -> list[tuple[str, Any]]:
    """Read a line back, as a script would."""
    found = WORD.findall(line)
    assert "".join(f"{key}={value} " for key, value in found) == f"{line} "
    return [(key, json.loads(value) if value.startswith('"') else value or None) for key, value in found]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        ("", '""'),
        ("mail", "mail"),
        ("a b", '"a b"'),
        ("e\nf", r'"e\nf"'),
        ('a"b', r'"a\"b"'),
        (r"c\d", r'"c\\d"'),
        ("a=b", '"a=b"'),
        ("žluť", "žluť"),
        ("\x1b[31m", r'"\u001b[31m"'),
        ("\x7f\u2028\u202e\u00a0", r'"\u007f\u2028\u202e\u00a0"'),
        (True, "true"),
        (False, "false"),
        (2**63 - 1, "9223372036854775807"),
        (60.0, "60"),
        (0.5, "0.5"),
        (datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45))), "2026-03-01T06:15:00+00:00"),
        (output.Json('{"a": 1.10}'), r'"{\"a\": 1.10}"'),
        (output.Json("[]"), "[]"),
    ],
)
def test_a_value_in_a_line(value: Any, shown: str) -> None:
    assert output.line({"key": value}) == f"key={shown}"


def test_a_list_repeats_its_key_in_a_line() -> None:
    assert output.line({"id": 1, "queue": ("a", "b c")}) == 'id=1 queue=a queue="b c"'


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_a_row_is_always_one_line_that_can_be_read_back(texts: list[str]) -> None:
    row = {f"key{number}": text for number, text in enumerate(texts)}
    line = output.line(row)
    assert line.isprintable()
    assert line.splitlines() == [line]
    assert parsed(line) == list(row.items())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_a_person_sees_holds_nothing_that_moves_the_cursor(text: str) -> None:
    assert output.printable(text).isprintable()


@pytest.mark.parametrize(
    "value",
    [None, True, 2**63 - 1, 0.5, "a\nb", "", [], ["a"], {"a": [1]}, [{"a": 1}, {"a": 2}], [{}]],
)
def test_a_document_is_json(value: Any) -> None:
    assert json.loads(output._document(value)) == value


def test_json_from_the_database_keeps_its_digits() -> None:
    row = {"args": output.Json('{"n": 12345678901234567890.10}'), "at": datetime(2026, 3, 1, tzinfo=UTC), "w": 60.0}
    assert output._document(row) == (
        '{"args": {"n": 12345678901234567890.10}, "at": "2026-03-01T00:00:00+00:00", "w": 60}'
    )


def test_json_from_the_database_is_written_in_ascii_as_all_else_is() -> None:
    text = '{"ключ": "é \\\\ 🙂 \\u00e9 \U0010ffff"}'
    written = output._document({"name": "ü", "meta": output.Json(text)})
    assert written.isascii()
    assert r"\ud83d\ude42" in written
    assert json.loads(written) == {"name": "ü", "meta": json.loads(text)}


def test_a_stream_that_takes_ascii_only_gets_json_that_can_be_read(command: Cli, table: Table) -> None:
    meta = {"k": "é🙂"}
    errors = [{"error": "E", "message": "ü", "at": "2026-03-01T12:30:00+00:00"}]
    table.insert(
        id=1, state="failed", meta=Jsonb(meta), args=Jsonb({"n": "я"}), result=Jsonb(["ж"]), errors=Jsonb(errors)
    )
    for arguments in (("list",), ("show", "1", "--args", "--result")):
        done = command("jobs", *arguments, "--json", environment={"PYTHONIOENCODING": "ascii"})
        assert (done.code, done.stderr) == (0, "")
        document = json.loads(done.stdout)
        row = document[0] if isinstance(document, list) else document
        assert row["meta"] == meta
    assert (row["args"], row["result"], row["errors"]) == ({"n": "я"}, ["ж"], errors)


@pytest.mark.usefixtures("person")
@pytest.mark.parametrize(
    "arguments",
    [*READING[:1], *(pytest.param(one, marks=FULL) for one in (*READING[1:-1], *WRITING, MIGRATE))],
    ids=" ".join,
)
def test_no_terminal_is_too_narrow(cli: Cli, table: Table, arguments: tuple[str, ...]) -> None:
    for number in (1, 2):
        table.insert(id=number, state="failed", meta=Jsonb({"tenant": "t" * 30}))
    table.rows("insert into akadze.limits (key, max_running) values ('k', 1), ('l', 2)")
    add_worker(table, "mail")
    shown = []
    for width in (20, *range(11)):
        shown.append(cli(*arguments, environment={"COLUMNS": str(width)}))
        assert (shown[-1].code, shown[-1].stderr, bool(shown[-1].stdout)) == (0, "", True)
        table.rows("update akadze.jobs set state = 'failed', cancel_requested_at = null")
    if arguments != ("workers", "list"):  # which tells the time since the last beat
        assert {result.stdout for result in shown} == {shown[0].stdout}


def test_an_error_is_one_line_without_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error("no\nway to postgresql://ada:secret@db/app")
    assert capsys.readouterr().err == "error: no\\nway to postgresql://ada:***@db/app\n"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("arguments", [*READING[:-1], *WRITING, MIGRATE], ids=" ".join)
def test_every_command_prints_a_line_for_each_row_to_a_pipe_and_a_document_to_whom_asks_for_it(
    cli: Cli, table: Table, arguments: tuple[str, ...], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.insert(id=1, state="failed")
    table.insert(id=2, queue="other")
    table.rows("insert into akadze.limits (key, max_running) values ('k', 1), ('l', 2)")
    add_worker(table, "mail")
    piped = cli(*arguments)
    table.rows("update akadze.jobs set state = 'failed'")  # it may have been requeued
    monkeypatch.setattr(output, "_for_person", lambda: terminal)
    asked = cli(*arguments, "--json")
    assert (piped.code, piped.stderr, asked.code, asked.stderr) == (0, "", 0, "")
    document = json.loads(asked.stdout)
    assert isinstance(document, list) == bool({"list", "requeue", "cancel", "migrate"} & set(arguments))
    rows = document if isinstance(document, list) else [document]
    assert rows
    assert [[key for key, _ in parsed(line)] for line in piped.lines] == [
        [key.replace("queues", "queue") for key in row] for row in rows
    ]
