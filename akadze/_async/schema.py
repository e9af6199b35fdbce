"""The schema: migrate, and what has been applied."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg

from akadze._async.index_builds import building, builds_indexes, statements_of
from akadze._connections import AsyncCaller, async_caller
from akadze._sqlstates import migrate_first
from akadze._statement import statement
from akadze._urls import libpq_url
from akadze.errors import AkadzeError

_LOCK_MIGRATIONS = statement("schema", "lock_migrations")
_LIMIT_WAITING = statement("schema", "limit_waiting")
_FIND_SCHEMA = statement("schema", "find_schema")
_CREATE_SCHEMA = statement("schema", "create_schema")
_CREATE_VERSIONS = statement("schema", "create_versions")
_LIST_VERSIONS = statement("schema", "list_versions")
_ADD_VERSION = statement("schema", "add_version")

_STEPS = files("akadze") / "_migrations"


def known_versions() -> list[str]:
    """Return the ids of the migrations of this release, in order."""
    return sorted(entry.name.removesuffix(".sql") for entry in _STEPS.iterdir() if entry.name.endswith(".sql"))


async def migrate(database_url: str) -> None:
    """Apply pending migrations. This command does not return database state.

    Safe to run from many processes at once, and again: each step is applied whole or not at all. The right to create
    schemas is needed only while the schema ``akadze`` is not there. Raises AkadzeError for a URL that is not of
    PostgreSQL, or that leads to a pooler where a step builds an index beside writers; and the driver's own error
    otherwise, LockNotAvailable if a step has waited 30 s for somebody's lock.
    """
    connection = await _connect(database_url)
    try:
        await apply_pending(async_caller(connection))
    finally:
        await connection.close()


async def apply_pending(caller: AsyncCaller) -> None:
    """Apply pending migrations on a connection: each in a transaction of its own, or in a savepoint of the caller's.

    One that builds indexes beside writers cannot be in a transaction; it raises AkadzeError if the caller is in one.
    """
    for version in known_versions():
        step = (_STEPS / f"{version}.sql").read_text(encoding="utf-8")
        if builds_indexes(step):
            await _build(caller, version, step)
        else:
            async with caller.savepoint():
                await _apply(caller, version, step)


async def applied_versions(database_url: str) -> list[str]:
    """Return applied migration ids, in order; none where nothing was migrated. This query does not write.

    Raises AkadzeError for a URL that is not of PostgreSQL.
    """
    connection = await _connect(database_url)
    try:
        return await read_versions(async_caller(connection))
    finally:
        await connection.close()


async def read_versions(caller: AsyncCaller) -> list[str]:
    if not (await caller.rows(_FIND_SCHEMA))[0]["versions"]:
        return []
    return [row["version"] for row in await caller.rows(_LIST_VERSIONS)]


async def check_schema(caller: AsyncCaller) -> None:
    """Raise AkadzeError unless the migrations of this release have been applied."""
    applied = await read_versions(caller)
    missing = [version for version in known_versions() if version not in applied]
    if missing:
        raise AkadzeError(f"the database lacks the migration {missing[0]}: {migrate_first()}")


async def _apply(caller: AsyncCaller, version: str, step: str) -> None:
    await caller.rows(_LIMIT_WAITING)
    await caller.rows(_LOCK_MIGRATIONS)
    found = (await caller.rows(_FIND_SCHEMA))[0]
    if not found["schema"]:
        await caller.rows(_CREATE_SCHEMA)
    if not found["versions"]:
        await caller.rows(_CREATE_VERSIONS)
    elif version in await read_versions(caller):
        return
    await _execute(caller, step)
    await caller.rows(_ADD_VERSION, version=version)


async def _build(caller: AsyncCaller, version: str, step: str) -> None:
    """Apply a step that builds indexes. One that was interrupted is not listed, and is done again as a whole."""
    if version in await read_versions(caller):
        return
    async with building(caller):
        if version in await read_versions(caller):  # whoever built before has done it
            return
        for one in statements_of(step):
            await _execute(caller, one)
        await caller.rows(_ADD_VERSION, version=version)


async def _execute(caller: AsyncCaller, text: str) -> None:
    # Without parameters the drivers send the text as it is, all statements of it.
    async with caller.connection.cursor() as cursor:
        await cursor.execute(text)


async def _connect(database_url: str) -> psycopg.AsyncConnection[Any]:
    connection = await psycopg.AsyncConnection.connect(libpq_url(database_url), autocommit=True, prepare_threshold=None)
    # What is read after the wait for another migrate has to be what that one left, whatever the role defaults to.
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    return connection
