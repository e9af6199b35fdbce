"""The roles of docs/security.md, made by the statements of that page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.docs.markdown import blocks

#: Roles belong to the server, on which other processes may run the same tests.
SUFFIX = f"_{os.environ.get('PYTEST_XDIST_WORKER', 'here')}_test"
NAMES = ("producer", "worker", "reader")
PAGE = {block.mark[1]: block.text for block in blocks("docs/security.md") if block.mark and block.language == "sql"}

Statement = sql.SQL | sql.Composed


class Roles:
    """The roles of the page, and one of each that may log in and is a member of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.drop()
        self.run_block("roles")
        for name in NAMES:
            self.execute(
                sql.SQL("create role {} login password 'test' in role {}").format(
                    sql.Identifier(f"akadze_{name}_login{SUFFIX}"), sql.Identifier(f"akadze_{name}{SUFFIX}")
                )
            )
            self.run_block(name)

    def run_block(self, name: str) -> None:
        """Run a block of SQL of the page, with names that are this process's own."""
        text = re.sub(r"\bakadze_(producer|worker|reader)\b", rf"akadze_\1{SUFFIX}", PAGE[f"security-{name}"])
        assert SUFFIX in text
        self.execute(sql.SQL(text))

    def url(self, name: str) -> str:
        given = make_url(self._url).set(username=f"akadze_{name}_login{SUFFIX}", password="test")
        return given.render_as_string(hide_password=False)

    def execute(self, statement: Statement) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement)

    def drop(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            made = connection.execute("select rolname from pg_roles where rolname like %s", [f"akadze_%{SUFFIX}"])
            for (name,) in made.fetchall():
                connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def roles(database_url: str) -> Iterator[Roles]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        [(allowed,)] = connection.execute("select rolsuper or rolcreaterole from pg_roles where rolname = current_user")
    if not allowed:
        pytest.skip("the account of AKADZE_DATABASE_URL may not make roles")
    roles = Roles(database_url)
    yield roles
    roles.drop()


def rows(url: str, statement: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def refused(url: str, *statements: str) -> None:
    """Each statement is refused for want of rights; with none of them anything has changed."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def refused_calls(url: str, *calls: Callable[[Any], Any]) -> None:
    """Each call is refused on a connection of its own."""
    for call in calls:
        with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            call(connection)
