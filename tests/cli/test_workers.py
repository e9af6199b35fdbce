"""Contract, section 14: `akadze workers`, `akadze metrics` and `akadze migrate`."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from akadze._sync.schema import known_versions
from tests.cli.conftest import Cli, Table
from tests.cli.test_queues import NAMES

ID = "12345678-1234-5678-1234-567812345678"


def add_worker(table: Table, *queues: str) -> None:
    table.rows(
        "insert into akadze.workers (id, hostname, pid, queues, started_at, heartbeat_at, heartbeat_ttl)"
        " values (%s, 'host', 42, %s, '2026-03-01 12:00Z', '2026-03-01 12:30Z', '30 s')",
        ID,
        list(queues),
    )


def test_a_line_names_each_queue_of_a_worker(cli: Cli, table: Table) -> None:
    assert cli("workers", "list").stdout == ""
    add_worker(table, "mail", "e\nf")
    assert cli("workers", "list").lines == [
        (
            f'id={ID} hostname=host pid=42 queue=mail queue="e\\nf" '
            "started_at=2026-03-01T12:00:00+00:00 heartbeat_at=2026-03-01T12:30:00+00:00"
        )
    ]
    (worker,) = json.loads(cli("workers", "list", "--json").stdout)
    assert (worker["id"], worker["queues"]) == (ID, ["mail", "e\nf"])


@pytest.mark.usefixtures("person")
def test_a_person_gets_a_table_of_workers(cli: Cli, table: Table) -> None:
    assert cli("workers", "list").stdout == "No workers.\n"
    add_worker(table, "mail", "e\nf")
    (row,) = [line for line in cli("workers", "list").lines if ID in line]
    assert row.split()[:5] == [ID, "host", "42", "mail,", "e\\nf"]


@pytest.mark.usefixtures("person")
def test_a_narrow_terminal_gets_all_of_a_worker(cli: Cli, table: Table) -> None:
    add_worker(table, "mail", "reports")
    shown = cli("workers", "list", environment={"COLUMNS": "80"})
    assert max(map(len, shown.lines)) <= 80
    for value in (f"id {ID}", "host", "42", "mail, reports", "2026-03-01 12:00:00Z", "2026-03-01 12:30:00Z"):
        assert value in shown.stdout


@pytest.mark.parametrize("terminal", [False, True])
def test_metrics_are_prometheus_text_for_everyone(
    cli: Cli, table: Table, terminal: bool, request: pytest.FixtureRequest
) -> None:
    if terminal:
        request.getfixturevalue("person")
    for name in NAMES:
        table.insert(queue=name)
    text = cli("metrics").stdout
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert sorted(sample.labels["queue"] for sample in families["akadze_jobs"].samples) == sorted(NAMES)
    assert text.endswith("\n")


def test_migrate_tells_which_migrations_are_new(cli: Cli, empty_database_url: str) -> None:
    versions = known_versions()
    first, second = (cli("migrate", url=empty_database_url) for _ in range(2))
    assert (first.code, first.lines) == (0, [f"version={version} new=true" for version in versions])
    assert (second.code, second.lines) == (0, [f"version={version} new=false" for version in versions])
    assert json.loads(cli("migrate", "--json", url=empty_database_url).stdout) == [
        {"version": version, "new": False} for version in versions
    ]


@pytest.mark.usefixtures("person")
def test_migrate_shows_a_person_a_table(cli: Cli, empty_database_url: str) -> None:
    lines = cli("migrate", url=empty_database_url).lines
    assert next(line for line in lines if "version" in line).split() == ["version", "new"]
    assert [line.split() for line in lines if "0001" in line] == [["0001_tables", "true"]]
    assert not [line for line in lines if "=" in line]
