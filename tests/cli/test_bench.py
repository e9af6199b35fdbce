"""Contract, section 14: the measurements of ``akadze bench``: they end, and leave nothing behind."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import psycopg

from akadze.sync import migrate
from tests.processes import Starter


def _names(url: str) -> set[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {row[0] for row in connection.execute("select datname from pg_database")}


def test_a_benchmark_prints_its_figures_and_drops_its_database(database_url: str, start_worker: Starter) -> None:
    before = _names(database_url)
    migrate(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("insert into akadze.jobs (task) values ('of somebody')")
        name = connection.info.dbname
    # Wherever the name of the database stands.
    parts = urlsplit(database_url)
    url = urlunsplit(parts._replace(path="/", query=f"{parts.query}&dbname={name}"))
    process = start_worker.command("bench", "--rounds", "1", "--database-url", url)
    assert process.wait(120) == 0
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select task from akadze.jobs").fetchall() == [("of somebody",)]
    assert "enqueue one by one" in process.stdout
    assert "slots=100" in process.stdout
    assert _names(database_url) == before


def test_a_second_benchmark_on_the_server_is_refused_in_one_line(database_url: str, start_worker: Starter) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create database akadze_bench")
        try:
            process = start_worker.command("bench", "--rounds", "1")
            assert process.wait(60) == 1
            assert "akadze_bench" in process.stderr
            assert len(process.stderr.strip().splitlines()) == 1
        finally:
            connection.execute("drop database akadze_bench")
