"""Contract, section 14: `akadze limits`."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, Table


def test_sets_lists_and_clears(cli: Cli, table: Table) -> None:
    result = cli("limits", "set", "two words", "--max-running", "3", "--max-starts", "5", "--window", "1.5m")
    assert result.lines == ['key="two words" max_running=3 max_starts=5 window_seconds=90']
    assert cli("limits", "set", "b", "--max-running", "0").lines == ["key=b max_running=0 max_starts= window_seconds="]
    assert json.loads(cli("limits", "list", "--json").stdout) == [
        {"key": "b", "max_running": 0, "max_starts": None, "window_seconds": None},
        {"key": "two words", "max_running": 3, "max_starts": 5, "window_seconds": 90},
    ]
    assert cli("limits", "clear", "two words").lines == ['key="two words" max_running= max_starts= window_seconds=']
    assert [row["key"] for row in table.rows("select key from akadze.limits")] == ["b"]
    assert cli("limits", "clear", "two words").code == 0


def test_what_is_not_given_keeps_its_value(cli: Cli) -> None:
    cli("limits", "set", "k", "--max-running", "3")
    assert cli("limits", "set", "k", "--max-starts", "5", "--window", "500ms").lines == [
        "key=k max_running=3 max_starts=5 window_seconds=0.5"
    ]


@pytest.mark.usefixtures("person")
def test_tells_a_person_in_words(cli: Cli) -> None:
    assert cli("limits", "list").stdout == "No limits.\n"
    assert cli("limits", "set", "k", "--max-running", "3", "--max-starts", "5", "--window", "1m").stdout == (
        "Key k: at most 3 run at once, at most 5 start within 60 s.\n"
    )
    assert cli("limits", "clear", "k").stdout == "Key k has no limits.\n"


@pytest.mark.usefixtures("person")
def test_a_person_gets_a_table_of_limits(cli: Cli) -> None:
    cli("limits", "set", "two words", "--max-running", "3")
    cli("limits", "set", "e\nf", "--max-starts", "5", "--window", "1m")
    lines = cli("limits", "list").lines
    assert not [line for line in lines if "=" in line]
    header = next(line for line in lines if "key" in line)
    assert header.split() == ["key", "max_running", "max_starts", "window_seconds"]
    assert [row.split() for row in lines if "two words" in row or "e\\nf" in row] == [
        ["e\\nf", "5", "60"],
        ["two", "words", "3"],
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["k"], "no limit is given; give --max-running, or --max-starts with --window, or all three"),
        (["k", "--max-starts", "5"], "--max-starts and --window belong together"),
        (["k", "--window", "5s"], "--max-starts and --window belong together"),
        (["k", "--max-running", "-1"], "--max-running is -1"),
        (["k", "--max-running", "2147483648"], "--max-running is 2147483648"),
        (["k", "--max-starts", "5", "--window", "0"], "--window is 0:00:00"),
        (["k", "--max-starts", "5", "--window", "soon"], "'soon' is no duration"),
        (["", "--max-running", "1"], "a limit's key is empty"),
        (["k", "--max-running", "x"], "--max-running"),
    ],
)
def test_a_limit_that_makes_no_sense_is_wrong_use(cli: Cli, table: Table, options: list[str], said: str) -> None:
    result = cli("limits", "set", *options)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr
    assert table.rows("select key from akadze.limits") == []
