"""Contract, section 5: array literals: whatever a queue or a task is called, the server reads the same names."""

from __future__ import annotations

import psycopg

from akadze._worker import literals

ODD = ["a", "", " ", "a b", 'a"b', "a\\b", "a,b", "{a}", "null", "NULL", "žluť", "line\nfeed", "'", "%s", ":x", "\\"]


def test_the_server_reads_the_names_that_were_written(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        [(names,)] = connection.execute("select cast(%s as text[])", [literals.texts(ODD)]).fetchall()
        assert names == ODD
        assert connection.execute("select cast(%s as text[])", [literals.texts([])]).fetchone() == ([],)


def test_the_server_reads_the_numbers_that_were_written(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        numbers = [1, -5, 2**62]
        assert connection.execute("select cast(%s as bigint[])", [literals.plain(numbers)]).fetchone() == (numbers,)
