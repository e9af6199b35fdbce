"""Every kind of session that enqueue takes, each opened in a transaction of the caller.

To add one: write how it is opened, beside the others of its package, and give it a name here.
"""

from __future__ import annotations

import pytest
from psycopg2.extras import NamedTupleCursor, RealDictCursor

from tests.connections import alchemy, django_connection, drivers
from tests.connections.alchemy import Opener

KINDS: dict[str, Opener] = {
    "sqlalchemy connection on asyncpg": alchemy.async_connection("asyncpg"),
    "sqlalchemy connection on asyncpg, streaming": alchemy.async_connection("asyncpg", stream_results=True),
    "sqlalchemy connection on psycopg2": alchemy.connection("psycopg2"),
    "sqlalchemy connection on psycopg2, serializable, streaming": alchemy.connection(
        "psycopg2", alchemy.StreamingConnection, isolation_level="SERIALIZABLE", stream_results=True
    ),
    "sqlalchemy session on asyncpg": alchemy.async_session("asyncpg"),
    "sqlalchemy session on psycopg2": alchemy.session("psycopg2"),
    "sqlalchemy session in run_sync on asyncpg": alchemy.async_session("asyncpg", caller=alchemy.InRunSync),
    "sqlalchemy session in run_sync on psycopg": alchemy.async_session("psycopg", caller=alchemy.InRunSync),
    "sqlalchemy scoped session on asyncpg": alchemy.async_scoped("asyncpg"),
    "sqlalchemy scoped session on psycopg2": alchemy.scoped("psycopg2"),
    "flask-sqlalchemy on psycopg": alchemy.of_flask("psycopg"),
    "flask-sqlalchemy on psycopg2": alchemy.of_flask("psycopg2"),
    "sqlmodel on psycopg": alchemy.of_sqlmodel("psycopg"),
    "sqlmodel on psycopg2": alchemy.of_sqlmodel("psycopg2"),
    "async sqlmodel on psycopg": alchemy.of_async_sqlmodel("psycopg"),
    "async sqlmodel on asyncpg": alchemy.of_async_sqlmodel("asyncpg"),
    "asyncpg": drivers.of_asyncpg(),
    "asyncpg of a pool": drivers.asyncpg_of_pool,
    "asyncpg with begin and commit": drivers.of_asyncpg(drivers.AsyncpgByStatements),
    "asyncpg with codecs": drivers.asyncpg_with_codecs,
    "asyncpg, serializable, with odd settings": drivers.of_asyncpg(
        settings=drivers.ODD_SETTINGS, isolation="serializable"
    ),
    "psycopg, async, with dumpers": drivers.psycopg_with_dumpers,
    "psycopg of a pool with dumpers": drivers.psycopg_of_pool_with_dumpers,
    "django": django_connection.django_connection,
    "psycopg2": drivers.of_psycopg2(),
    "psycopg2 with dict rows": drivers.of_psycopg2(cursor_factory=RealDictCursor),
    "psycopg2 with named tuples": drivers.of_psycopg2(cursor_factory=NamedTupleCursor),
    "psycopg2 with odd settings": drivers.of_psycopg2(drivers.ODD_SETTINGS),
    "psycopg2 with begin and commit": drivers.psycopg2_by_statements,
    "psycopg2 of a pool, logging": drivers.psycopg2_of_pool,
    "psycopg2, serializable, with loaders": drivers.psycopg2_serializable,
}

#: At least one of each driver and of each package: the others have the same tests in full runs.
SOME = [
    "sqlalchemy connection on asyncpg, streaming",
    "sqlalchemy connection on psycopg2, serializable, streaming",
    "sqlalchemy session on asyncpg",
    "sqlalchemy session on psycopg2",
    "sqlalchemy session in run_sync on psycopg",
    "sqlalchemy scoped session on psycopg2",
    "flask-sqlalchemy on psycopg",
    "async sqlmodel on psycopg",
    "asyncpg",
    "asyncpg, serializable, with odd settings",
    "psycopg, async, with dumpers",
    "django",
    "psycopg2 with dict rows",
    "psycopg2 of a pool, logging",
]

#: For the tests that every kind has always: ``@of_every_kind``.
of_every_kind = pytest.mark.parametrize("caller", KINDS, indirect=True)

_ALONE = {"isolation_level": "AUTOCOMMIT"}

#: The kinds that can commit each statement by itself, so opened.
IN_AUTOCOMMIT: dict[str, Opener] = {
    "sqlalchemy connection on asyncpg": alchemy.async_connection("asyncpg", **_ALONE),
    "async sqlalchemy connection on psycopg": alchemy.async_connection("psycopg", **_ALONE),
    "sqlalchemy connection on psycopg": alchemy.connection("psycopg", **_ALONE),
    "sqlalchemy connection on psycopg2": alchemy.connection("psycopg2", **_ALONE),
    "sqlalchemy session on asyncpg": alchemy.async_session("asyncpg", **_ALONE),
    "sqlalchemy session on psycopg2": alchemy.session("psycopg2", **_ALONE),
    "sqlalchemy session in run_sync on asyncpg": alchemy.async_session("asyncpg", caller=alchemy.InRunSync, **_ALONE),
    "asyncpg": drivers.asyncpg_in_autocommit,
    "async psycopg": drivers.psycopg_async_in_autocommit,
    "psycopg": drivers.psycopg_in_autocommit,
    "django": django_connection.django_in_autocommit,
    "psycopg2": drivers.psycopg2_in_autocommit,
}
