"""Roles with few rights, for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

Role = Callable[[str, str], str]


def of_this_process(name: str) -> str:
    """Return the name that a role has here: roles belong to the server, where other processes run tests as well."""
    return f"{name}_{os.environ.get('PYTEST_XDIST_WORKER', 'here')}"


@pytest.fixture
def role(server_url: str) -> Iterator[Role]:
    """Make a role that may log in and nothing more, and return the URL of a database for it: `role(name, url)`."""
    made: list[tuple[str, str]] = []
    with psycopg.connect(server_url, autocommit=True) as connection:
        [(allowed,)] = connection.execute("select rolsuper or rolcreaterole from pg_roles where rolname = current_user")
    if not allowed:
        pytest.skip("the account of AKADZE_DATABASE_URL may not make roles")

    def make(name: str, url: str) -> str:
        with psycopg.connect(url, autocommit=True) as connection:
            # The roles of an aborted run are still there: they belong to the server, not to a database.
            found = connection.execute("select from pg_roles where rolname = %s", [name]).fetchall()
            if found:
                connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))
            connection.execute(
                sql.SQL("create role {} login password 'test' nosuperuser nocreatedb nocreaterole").format(
                    sql.Identifier(name)
                )
            )
        made.append((name, url))
        return make_url(url).set(username=name, password="test").render_as_string(hide_password=False)

    yield make
    for name, url in made:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(name)))
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))
