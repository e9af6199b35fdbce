"""The database of the pytest plugin: where it is, that it may be emptied, and that the app under test is on it."""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from akadze import dev
from akadze._connections import sync_caller
from akadze._emptying import empty_tables
from akadze._sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from akadze._statement import statement
from akadze._sync.schema import check_schema
from akadze._urls import libpq_url
from akadze.app import Akadze
from akadze.errors import AkadzeError
from akadze.sync import migrate

_FIND_LEFTOVERS = statement("enqueued", "find_leftovers")
_NAME_DATABASE = statement("enqueued", "name_database")
_LIMIT_WAITING = statement("enqueued", "limit_waiting")

_NAME = "akadze_test"


@contextmanager
def database_for_tests(given: str | None, worker: str) -> Iterator[str]:
    """Give the URL of a migrated database: the given one, else one of a server that is started for it.

    ``worker`` is the name of this process among several that test at once, which then has a database for itself, on the
    same server; it is made anew and dropped in the end. Raises AkadzeError if `test` is no word in the given name.
    """
    if given is None:
        with dev.start() as server, _made(server.url(), _NAME) as url:
            yield url
        return
    name = _database_of(given)
    check_name(name)
    if worker:
        with _made(given, f"{name}_{worker}") as url:
            yield url
    else:
        migrate(given)
        yield given


def check_name(name: str) -> None:
    """Raise AkadzeError unless the name says that the database is for tests, whose jobs may be deleted."""
    if not re.search(r"(^|[_\W])tests?([_\W]|$)", name):
        raise AkadzeError(
            f"the database is named {name!r}, and the jobs in a database of tests are deleted: use one whose name has "
            "test as a word, as in app_test, or unset AKADZE_DATABASE_URL to have a throw-away server started"
        )


def load_app(name: str, url: str) -> Akadze:
    """Import the app that ``module:attribute`` names. Raises AkadzeError unless it is on the database of the URL."""
    if not name:
        raise AkadzeError(
            "the ini option akadze_app is not set: write it as module:attribute, or define a fixture akadze_app"
        )
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise AkadzeError(
            f"the ini option akadze_app is {name!r}: write it as module:attribute, or define a fixture akadze_app"
        )
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # one that the module itself imports
        raise AkadzeError(f"the ini option akadze_app is {name!r}, and there is no module {error.name!r}") from None
    if not hasattr(found, attribute):
        raise AkadzeError(f"the ini option akadze_app is {name!r}, and module {module!r} has no {attribute!r}")
    app = getattr(found, attribute)
    if not isinstance(app, Akadze):
        raise AkadzeError(
            f"{name} is of type {type(app).__name__}: the ini option akadze_app has to name an Akadze app"
        )
    used, wanted = _database_of(app.engine.url.render_as_string(hide_password=False)), _database_of(url)
    if used != wanted:
        raise AkadzeError(
            f"the app {name} is on the database {used!r}, and the tests are on {wanted!r}: pass it "
            'database_url=lambda: os.environ["AKADZE_DATABASE_URL"], or define a fixture akadze_app that returns it '
            "(with pytest-django: one that takes the fixture db)"
        )
    return app


def close_app(app: Akadze) -> None:
    """Close the app's engines from outside any loop, as far as their drivers allow it."""
    if app.engine.dialect.driver == "asyncpg":
        app.close()  # its connections can be closed on their own loop alone
        return
    # In a thread of its own: a loop may be running in this one.
    closing = threading.Thread(target=lambda: asyncio.run(app.aclose()), name="akadze-close")
    closing.start()
    closing.join()


@contextmanager
def emptied(app: Akadze) -> Iterator[None]:
    """Delete what is in akadze's tables, before and after. Raises AkadzeError if the database is not one for tests."""
    _empty(app)
    yield
    _empty(app)
    app.close()


def _empty(app: Akadze) -> None:
    with app.sync_engine.begin() as connection:
        caller = sync_caller(connection)
        check_name(caller.rows(_NAME_DATABASE)[0]["name"])
        check_schema(caller)
        if not caller.rows(_FIND_LEFTOVERS)[0]["found"]:
            return  # without a lock, since tests that roll back may still be at work on the tables
        caller.rows(_LIMIT_WAITING)
        try:
            empty_tables(caller)
        except Exception as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            raise AkadzeError(
                "a session that is still open has worked on akadze's tables, so they cannot be emptied: end its "
                "transaction in the test, or ask for akadze_jobs before the fixture that opens it"
            ) from error


@contextmanager
def _made(server: str, name: str) -> Iterator[str]:
    """Make a database on the server, replacing one of that name, give its URL, and drop it in the end."""
    _execute(server, "drop database if exists {} with (force)", name)
    _execute(server, "create database {}", name)
    url = libpq_url(server, database=name)
    migrate(url)
    yield url
    _execute(server, "drop database if exists {} with (force)", name)


def _execute(server: str, statement: LiteralString, name: str) -> None:
    with psycopg.connect(libpq_url(server), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


def _database_of(url: str) -> str:
    return str(conninfo_to_dict(libpq_url(url)).get("dbname", ""))
