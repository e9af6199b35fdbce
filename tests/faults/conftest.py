"""Fixtures for what an application, a row written by hand or the database does to a worker."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.servers import set_for_new_sessions
from tests.worker.conftest import serve, table

__all__ = ["serve", "short_transactions", "table"]


@pytest.fixture
def short_transactions(request: pytest.FixtureRequest, database_url: str) -> Iterator[None]:
    """New sessions of this database are ended by a transaction that is open for long: the param's setting and time."""
    with psycopg.connect(database_url, autocommit=True, application_name="test") as connection:
        set_for_new_sessions(connection, *request.param)
        yield
        connection.execute(sql.SQL("alter database {} reset all").format(sql.Identifier(connection.info.dbname)))
