"""Each test has an empty database, whatever the test before it left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.database import Database


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database.url, autocommit=True) as connection:
        yield connection


def relations(database: Database) -> list[str]:
    with database.connect() as connection:
        return [
            name
            for (name,) in connection.execute(
                "select oid::regclass::text from pg_class where relnamespace not in"
                " (select oid from pg_namespace where nspname ~ '^pg_' or nspname = 'information_schema') order by 1"
            )
        ]


def test_rows_and_sequences_are_gone_and_the_migrations_stay(
    database: Database, connection: psycopg.Connection
) -> None:
    insert = "insert into akadze.jobs (task, queue) values ('t', 'q') returning id"
    assert connection.execute(insert).fetchall() == [(1,)]
    migrated = connection.execute("select count(*) from akadze.schema_migrations").fetchone()
    connection.close()
    database.reset()
    with database.connect() as fresh:
        assert fresh.execute("select count(*) from akadze.schema_migrations").fetchone() == migrated
        assert fresh.execute(insert).fetchall() == [(1,)]
    database.reset()


@pytest.mark.parametrize(
    "statement",
    [
        "create table t (id serial primary key, parent int references t)",
        "create table p (id int) partition by list (id); create table p1 partition of p for values in (1)",
        "create table t (id int); create view v as select * from t; create materialized view m as select * from v",
        "create sequence s; create table i (id int generated always as identity)",
        "create type mood as enum ('good'); create domain d as mood; create type r as range (subtype = float8)",
        "create type pair as (a int, b int)",
        "create function f(a int, b text) returns int language sql as 'select 1'",
        "create procedure pr() language sql as 'select 1'",
        'create schema "Other one" create table u (id int)',
        "drop table akadze.limits cascade",
        "alter table akadze.limits add column colour text",
        "drop index akadze.jobs_line",
        "create table akadze.more (id int)",
        "drop schema akadze cascade",
    ],
)
def test_what_a_test_made_or_dropped_is_undone(
    database: Database, connection: psycopg.Connection, statement: str
) -> None:
    catalogs = "select (select count(*) from pg_class), (select count(*) from pg_type), (select count(*) from pg_proc)"
    before = relations(database), connection.execute(catalogs).fetchall()
    connection.execute(statement)
    database.reset()
    with database.connect() as fresh:
        assert (relations(database), fresh.execute(catalogs).fetchall()) == before
        schemas = fresh.execute("select nspname from pg_namespace where nspname !~ '^pg_'").fetchall()
        assert sorted(schemas) == [("akadze",), ("information_schema",), ("public",)]


def test_a_session_that_holds_a_lock_is_ended(database: Database) -> None:
    left = psycopg.connect(database.url)
    left.execute("lock table akadze.jobs")
    database.reset()
    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")
    left.close()


def test_what_was_there_before_the_tests_stays(database: Database, connection: psycopg.Connection) -> None:
    connection.execute("create table of_the_developer (id int); create schema elsewhere")
    with closing(Database(database.url)) as another:
        another.reset()
    with database.connect() as fresh:
        found = fresh.execute("select to_regclass('public.of_the_developer')::text, to_regnamespace('elsewhere')::text")
        assert found.fetchone() == ("public.of_the_developer", "elsewhere")
    database.reset()
