"""The database of a command: its URL, one short-lived connection, and how its errors are told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from akadze.cli.output import fail

if TYPE_CHECKING:
    import psycopg

_CONNECT_TIMEOUT: Final = 10  # seconds, for each host; libpq would wait without an end


@contextmanager
def opened(url: str, *, reading: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to a migrated database; what the block does is one transaction. Tells errors and exits.

    With ``reading`` all of its statements see the same state.
    """
    import psycopg

    from akadze._connections import sync_caller
    from akadze._sync.schema import check_schema

    address = connectable(url)
    with telling_errors(), psycopg.connect(address, prepare_threshold=None, client_encoding="utf8") as connection:
        if reading:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
        check_schema(sync_caller(connection))
        yield connection


def connectable(url: str) -> str:
    """Return the URL as psycopg takes it, with a limit of the time to connect. Exits with 2 for one that is wrong."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from akadze._sqlstates import first_line
    from akadze._urls import libpq_url
    from akadze.errors import AkadzeError

    try:
        address = libpq_url(url)
        given = conninfo_to_dict(address)
    except (AkadzeError, psycopg.ProgrammingError) as error:
        fail(first_line(error), 2)
    if "connect_timeout" in given or os.environ.get("PGCONNECT_TIMEOUT"):
        return address
    return f"{address}{'&' if '?' in address else '?'}connect_timeout={_CONNECT_TIMEOUT}"


@contextmanager
def telling_errors() -> Iterator[None]:
    """Tell what the caller or the database did wrong in one line and exit with 1."""
    import psycopg

    from akadze._sqlstates import first_line
    from akadze.errors import AkadzeError

    try:
        yield
    except (AkadzeError, psycopg.Error) as error:
        fail(first_line(error))


@contextmanager
def checking() -> Iterator[None]:
    """Tell what is wrong with the arguments of a command in one line and exit with 2."""
    from akadze.errors import AkadzeError

    try:
        yield
    except AkadzeError as error:
        fail(str(error), 2)
