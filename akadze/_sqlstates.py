"""What an error of the database means for the one who gets it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

UNIQUE_VIOLATION = "23505"
_NO_TABLE_OR_SCHEMA = frozenset({"42P01", "3F000"})
NO_ACTIVE_TRANSACTION = "25P01"
LOCK_NOT_AVAILABLE = "55P03"
DEADLOCK_DETECTED = "40P01"

# Classes and codes after which the same statement may well succeed: connection lost, too many connections or out of
# memory, restart, cancelled or timed out, deadlock or serialization failure, lock timeout, read-only standby, a
# transaction that was open for too long.
_PASSING_CLASSES = ("08", "53", "57", "58", "40")
# 26000 is a prepared statement that a hook has deallocated: the next connection prepares anew.
_PASSING = frozenset({LOCK_NOT_AVAILABLE, "25006", "25P03", "25P04", "26000"})
# The server ends the session of a transaction that does nothing for too long, or is open for too long.
_OUT_OF_TIME = frozenset({"25P03", "25P04"})
# Of those classes, what waiting does not mend: the database is gone.
_LASTING = frozenset({"57P04"})


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's own error below the wrapper of SQLAlchemy or Django."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    if type(error).__module__ == "django.db.utils" and error.__cause__ is not None:
        return error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: on further ones there may be statements, and with them arguments."""
    lines = str(driver_error(error)).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def sqlstate(error: BaseException) -> str | None:
    """Return the five characters that PostgreSQL gave the error, None if it did not come from the server."""
    inner = driver_error(error)
    code = getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None)
    return code if isinstance(code, str) else None


@contextmanager
def missing_tables_noted() -> Iterator[None]:
    """Say in an error about akadze's tables not being there what to run. It stays the driver's own error."""
    try:
        yield
    except Exception as error:
        if sqlstate(error) in _NO_TABLE_OR_SCHEMA and "akadze" in str(driver_error(error)):
            error.add_note(f"akadze's tables are not in this database: {migrate_first()}")
        raise


def migrate_first() -> str:
    """Say which command makes the tables: in a Django project its own, which knows the database."""
    registry = sys.modules.get("django.apps")
    ours = registry is not None and registry.apps.ready and registry.apps.is_installed("akadze.contrib.django")
    return f"run `{'manage.py migrate' if ours else 'akadze migrate'}` on it first"


def is_transient(error: BaseException) -> bool:
    """Tell whether the same thing may succeed when tried again later."""
    code = sqlstate(error)
    if code is not None:
        return code not in _LASTING and (code.startswith(_PASSING_CLASSES) or code in _PASSING)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    inner = driver_error(error)
    # Without a code from the server it is the connection that failed, on its way or before it was there.
    return isinstance(
        inner, psycopg.OperationalError | psycopg.InterfaceError | PoolTimeout | OSError | TimeoutError
    ) or (type(inner).__name__ in {"OperationalError", "InterfaceError", "ConnectionDoesNotExistError"})


def is_data_error(error: BaseException) -> bool:
    """Tell whether the server or the driver refused a value: data exceptions, exceeded limits, a foreign character."""
    code = sqlstate(error)
    return isinstance(driver_error(error), (psycopg.DataError, UnicodeEncodeError)) or (
        code is not None and code.startswith(("22", "54"))
    )


def is_memory_short(error: BaseException) -> bool:
    """Tell whether this process had no memory for what it was to send: Python says so, or libpq does, in words."""
    inner = driver_error(error)
    return isinstance(inner, MemoryError) or (
        isinstance(inner, psycopg.OperationalError) and inner.sqlstate is None and "memory" in str(inner)
    )


def is_out_of_time(error: BaseException) -> bool:
    """Tell whether the server ended the session because its transaction took too long."""
    return sqlstate(error) in _OUT_OF_TIME


def is_connection_lost(error: BaseException) -> bool:
    """Tell whether the connection, and with it the transaction, is gone."""
    code = sqlstate(error)
    if code is not None:
        return code.startswith(("08", "57P")) or code in _OUT_OF_TIME
    return isinstance(driver_error(error), psycopg.OperationalError | psycopg.InterfaceError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )
