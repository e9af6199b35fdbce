"""Contract, section 14: `akadze queues`."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, Table

NAMES = ['a"b', r"c\d", "e\nf", r"g\n", "žluť", '{x="y"} 1', "two words", "\x1b[31m", "-dash"]


def test_lists_counts_by_state_and_what_is_paused(cli: Cli, table: Table) -> None:
    table.insert(queue="mail")
    table.insert(queue="mail")
    table.insert(queue="mail", state="failed")
    table.rows("insert into akadze.queue_pauses (queue) values ('empty')")
    assert cli("queues", "list").lines == [
        "queue=empty paused=true queued=0 running=0 succeeded=0 failed=0 cancelled=0",
        "queue=mail paused=false queued=2 running=0 succeeded=0 failed=1 cancelled=0",
    ]
    assert json.loads(cli("queues", "list", "--json").stdout)[1] == {
        "queue": "mail",
        "paused": False,
        "queued": 2,
        "running": 0,
        "succeeded": 0,
        "failed": 1,
        "cancelled": 0,
    }


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_paused_listed_and_resumed(cli: Cli, table: Table, name: str) -> None:
    paused = cli("queues", "pause", "--", name)
    assert (paused.code, len(paused.lines)) == (0, 1)
    assert [row["queue"] for row in table.rows("select queue from akadze.queue_pauses")] == [name]
    assert len(cli("queues", "list").lines) == 1
    assert [row["queue"] for row in json.loads(cli("queues", "list", "--json").stdout)] == [name]
    resumed = cli("queues", "resume", "--json", "--", name)
    assert json.loads(resumed.stdout) == {"queue": name, "paused": False}
    assert table.rows("select queue from akadze.queue_pauses") == []


def test_pausing_and_resuming_twice_changes_nothing(cli: Cli, table: Table) -> None:
    assert [cli("queues", "pause", "mail").code for _ in range(2)] == [0, 0]
    assert len(table.rows("select queue from akadze.queue_pauses")) == 1
    assert [cli("queues", "resume", "mail").code for _ in range(2)] == [0, 0]


@pytest.mark.usefixtures("person")
def test_a_person_gets_sentences_and_a_table(cli: Cli) -> None:
    assert cli("queues", "list").stdout == "No jobs, and no paused queue.\n"
    assert cli("queues", "pause", "e\nf").stdout == "Queue e\\nf is paused.\n"
    (row,) = [line for line in cli("queues", "list").lines if "e\\nf" in line]
    assert row.split() == ["e\\nf", "true", "0", "0", "0", "0", "0"]
    assert cli("queues", "resume", "e\nf").stdout == "Queue e\\nf is not paused.\n"


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("name", ["", "q" * 513, "\udcff"])
def test_a_name_that_no_queue_can_have_is_wrong_use(cli: Cli, verb: str, name: str) -> None:
    result = cli("queues", verb, name)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: a queue's name ")
    assert result.stderr.count("\n") == 1
