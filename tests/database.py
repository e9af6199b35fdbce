"""The PostgreSQL that tests run on: the one AKADZE_DATABASE_URL names, else a throw-away one for this run.

Every process that runs tests (each worker of pytest-xdist) has a database for itself. It is migrated once, and emptied
after each test that used it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from akadze import dev
from akadze.sync import migrate
from tests.waiting import PATIENCE

_GIVEN_URL = os.environ.get("AKADZE_DATABASE_URL")
_XDIST_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")

#: What a session of this module is called, by which tests leave it out.
NAME_OF_SESSION = "between tests"

_TABLES = "select tablename from pg_tables where schemaname = 'akadze' and tablename <> 'schema_migrations'"
_SIZE = "select sum(pg_relation_size(oid)) from pg_class where relnamespace = 'akadze'::regnamespace and relkind = 'r'"
#: Bytes in the tables up to which deleting their rows is faster than new files for each table and index.
_SMALL = 500_000
_RELATIONS = """
select relname, relkind, relnatts from pg_class join pg_namespace on pg_namespace.oid = relnamespace
where nspname = 'akadze' order by relname
"""

# Everything in the schema public, and other schemas, as the statements that drop it; not what an extension brought.
# Sequences come after the tables, and routines after the types, which take theirs with them.
_LEFTOVERS = """
with provided as (select objid from pg_depend where deptype = 'e')
select format(
    'drop %s if exists %s cascade',
    case relkind
        when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table'
        when 'c' then 'type' else 'table'
    end,
    oid::regclass)
from pg_class
where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f', 'c')
  and oid not in (select objid from provided)
union all
select format('drop sequence if exists %s cascade', oid::regclass)
from pg_class
where relnamespace = 'public'::regnamespace and relkind = 'S' and oid not in (select objid from provided)
union all
select format('drop type if exists %s cascade', oid::regtype)
from pg_type
where typnamespace = 'public'::regnamespace and typtype in ('e', 'd', 'r') and oid not in (select objid from provided)
union all
select format('drop routine if exists %s cascade', oid::regprocedure)
from pg_proc
where pronamespace = 'public'::regnamespace and oid not in (select objid from provided)
union all
select format('drop schema if exists %I cascade', nspname)
from pg_namespace
where nspname !~ '^pg_' and nspname not in ('information_schema', 'public', 'akadze')
  and oid not in (select objid from provided)
"""


def guard(url: str) -> str:
    """Return the URL in libpq's form. Refuse a database that does not look like one for tests."""
    url = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)
    name = conninfo_to_dict(url).get("dbname", "")
    if name != "akadze" and not str(name).endswith("_test"):
        raise pytest.UsageError(
            f"AKADZE_DATABASE_URL names the database {name!r}, and the tests delete what is in theirs: "
            "name one that is called akadze or ends in _test, or unset it to have a throw-away server started."
        )
    return url


def pytest_configure() -> None:
    if _GIVEN_URL:
        guard(_GIVEN_URL)


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    """Hide the developer's own settings from the code under test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AKADZE_DATABASE_URL", "AKADZE_LISTEN_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a database on the server that the tests may connect to, to create others on it."""
    if _GIVEN_URL:
        yield guard(_GIVEN_URL)
    else:
        with dev.start() as server:
            yield server.url()


def with_database(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    return re.sub(r"^(postgresql://[^/?]*)(/[^?]*)?", lambda found: f"{found[1]}/{quote(name, safe='')}", url)


def create_database(server_url: str, name: str) -> str:
    """Make a database, replacing one of that name, and return its URL."""
    drop_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return with_database(server_url, name)


def skip_where_django_refuses(url: str) -> None:
    """Skip the test if the server is older than Django takes: 5.2 and newer want PostgreSQL 14."""
    with psycopg.connect(url) as connection:
        if connection.info.server_version < 140000:
            pytest.skip("Django 5.2 and newer refuse a PostgreSQL older than 14")


def drop_database(server_url: str, name: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


class Database:
    """The database of this process: migrated when it is made, and emptied by `reset`."""

    def __init__(self, url: str) -> None:
        self.url = url
        # Between resets: a new session of PostgreSQL would read its catalogs anew, which takes four times the rest.
        self._kept_open: psycopg.Connection | None = None
        self.migrate()
        with self.connect() as connection:
            self._relations = connection.execute(_RELATIONS).fetchall()
            self._kept = set(connection.execute(_LEFTOVERS).fetchall())

    def connect(self) -> psycopg.Connection:
        options = "-c search_path= -c lock_timeout=20s"
        return psycopg.connect(self.url, autocommit=True, options=options, application_name=NAME_OF_SESSION)

    def migrate(self) -> None:
        with self.connect() as connection:
            connection.execute("drop schema if exists akadze cascade")
        migrate(self.url)

    def reset(self) -> None:
        """End the sessions that a test left behind, and bring the database back to how it was."""
        connection = self._own_connection()
        self._end_other_sessions(connection)
        for leftover in connection.execute(_LEFTOVERS).fetchall():
            if leftover not in self._kept:
                connection.execute(leftover[0])
        if connection.execute(_RELATIONS).fetchall() == self._relations:
            self._empty(connection)
        else:
            self.migrate()

    def close(self) -> None:
        if self._kept_open is not None:
            self._kept_open.close()

    def _own_connection(self) -> psycopg.Connection:
        try:
            if self._kept_open is not None:
                self._kept_open.execute("select")
                return self._kept_open
        except psycopg.OperationalError:  # a test ended all sessions, or the server
            self.close()
        self._kept_open = self.connect()
        return self._kept_open

    def _empty(self, connection: psycopg.Connection) -> None:
        names = [sql.Identifier("akadze", name) for (name,) in connection.execute(_TABLES)]
        size = connection.execute(_SIZE).fetchone()
        if size is not None and size[0] < _SMALL:
            deletes = [sql.SQL("delete from {}").format(name) for name in names]
            restart = sql.SQL("select setval('akadze.jobs_id_seq', 1, false)")
            connection.execute(sql.SQL("; ").join([*deletes, restart]))
        else:
            connection.execute(sql.SQL("truncate {} restart identity").format(sql.SQL(", ").join(names)))

    def _end_other_sessions(self, connection: psycopg.Connection) -> None:
        deadline = time.monotonic() + PATIENCE
        while connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
        ).fetchall():
            assert time.monotonic() < deadline, "a session that the test left does not end"
            time.sleep(0.005)


@pytest.fixture(scope="session")
def database(server_url: str) -> Iterator[Database]:
    if _GIVEN_URL and not _XDIST_WORKER:
        with closing(Database(server_url)) as database:
            yield database
        return
    name = f"akadze_{_XDIST_WORKER}_test" if _XDIST_WORKER else "akadze_test"
    with closing(Database(create_database(server_url, name))) as database:
        yield database
    drop_database(server_url, name)


@pytest.fixture
def database_url(database: Database) -> Iterator[str]:
    """The URL of a database with akadze's schema and no rows."""
    yield database.url
    database.reset()


@pytest.fixture
def empty_database_url(request: pytest.FixtureRequest, server_url: str) -> Iterator[str]:
    """The URL of a database without akadze's schema.

    On the server of AKADZE_DATABASE_URL, where we may not be allowed to make databases, it is that of database_url.
    """
    if _GIVEN_URL:
        database: Database = request.getfixturevalue("database")
        with database.connect() as connection:
            connection.execute("drop schema akadze cascade")
        yield database.url
        database.reset()
    else:
        name = "akadze_empty_test"
        yield create_database(server_url, name)
        drop_database(server_url, name)
