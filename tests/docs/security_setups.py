"""The set-ups of docs/security.md. What its roles can and cannot do is tried in tests/faults/test_rights.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.docs.bench import Bench
from tests.docs.setups import set_up

ROLES = ("akadze_producer", "akadze_worker", "akadze_reader")


async def make_roles(connection: psycopg.AsyncConnection) -> None:
    for role in ROLES:
        await connection.execute(f"create role {role} nologin")


async def drop_roles(connection: psycopg.AsyncConnection) -> None:
    for role in ROLES:
        await connection.execute(f"drop owned by {role}")
        await connection.execute(f"drop role {role}")


async def open_as_maker(bench: Bench) -> psycopg.AsyncConnection:
    """Connect as somebody who may make the roles that the page names."""
    connection = await psycopg.AsyncConnection.connect(bench.url, autocommit=True)
    cursor = await connection.execute("select rolcreaterole or rolsuper from pg_roles where rolname = current_user")
    there = await connection.execute("select 1 from pg_roles where rolname = any (%s)", [list(ROLES)])
    if await cursor.fetchone() != (True,) or await there.fetchone():
        await connection.close()
        pytest.skip("the page names roles that this server has, or does not let us make")
    return connection


@set_up("security-roles")
async def roles(bench: Bench) -> AsyncIterator[None]:
    async with await open_as_maker(bench) as connection:
        try:
            yield
        finally:
            await drop_roles(connection)


def granted(name: str, question: str) -> None:
    """Set up a block of grants, after which the answer is true."""

    @set_up(name)
    async def grants(bench: Bench) -> AsyncIterator[None]:
        async with await open_as_maker(bench) as connection:
            await make_roles(connection)
            try:
                yield
                cursor = await connection.execute(question)
                assert await cursor.fetchone() == (True,)
            finally:
                await drop_roles(connection)


granted("security-producer", "select has_column_privilege('akadze_producer', 'akadze.jobs', 'args', 'insert')")
granted("security-producer-hooks", "select has_table_privilege('akadze_producer', 'akadze.jobs', 'select')")
granted(
    "security-producer-cancel",
    "select has_column_privilege('akadze_producer', 'akadze.jobs', 'cancel_requested_at', 'update')",
)
granted("security-worker", "select has_table_privilege('akadze_worker', 'akadze.periodic_runs', 'delete')")
granted("security-reader", "select has_column_privilege('akadze_reader', 'akadze.jobs', 'state', 'select')")
