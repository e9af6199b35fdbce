"""What a test asks of PostgreSQL beforehand, so that it is skipped for that alone: any other error is a failure."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from akadze import dev


def skip_without_programs(*names: str) -> None:
    """Skip the test where no PostgreSQL is found to start, or one without these programs."""
    binaries = dev.find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL is found to start a server of the test's own")
    for name in names:
        if not (binaries / name).is_file():
            pytest.skip(f"there is no {name} in {binaries}")


def set_for_new_sessions(connection: psycopg.Connection, setting: str, value: str) -> None:
    """Have new sessions of this database default to the setting. Skip the test where the server cannot, or we may not.

    Whoever has called this resets it: `alter database ... reset all`.
    """
    [(known, owned)] = connection.execute(
        "select exists (select from pg_settings where lower(name) = lower(%s)), pg_has_role(datdba, 'member')"
        " from pg_database where datname = current_database()",
        [setting],
    ).fetchall()
    if not known:
        pytest.skip(f"this server has no setting {setting}")
    if not owned:
        pytest.skip("the account of AKADZE_DATABASE_URL does not own its database")
    connection.execute(
        sql.SQL("alter database {} set {} to {}").format(
            sql.Identifier(connection.info.dbname), sql.Identifier(setting), sql.Literal(value)
        )
    )
