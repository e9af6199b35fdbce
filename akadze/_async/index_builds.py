"""Steps of a migration that build indexes on tables that may be big: beside writers, so outside a transaction.

The word ``concurrently`` tells such a step. The server keeps an index that it could not finish, as an invalid one. So
each ``create index concurrently`` has a ``drop index concurrently if exists`` before it: the step can be done again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from akadze._connections import AsyncCaller
from akadze._statement import Statement, statement
from akadze.errors import AkadzeError

_READ_SESSION = statement("schema", "read_session")
_TAKE_TURN = statement("schema", "take_turn")
_PAUSE = statement("schema", "pause")
_LIMIT_BUILDING = statement("schema", "limit_building")
_GIVE_TURN = statement("schema", "give_turn")

# Longer than this a migrate does not wait for another one to build: 30 s, as for all locks.
_PAUSES = 150


def builds_indexes(step: str) -> bool:
    """Tell whether a step builds indexes beside writers. Pure."""
    return "concurrently" in Statement("step", step).sql


def statements_of(step: str) -> list[str]:
    """Return the statements of such a step, each to be sent alone. Pure."""
    return [part.strip() for part in Statement("step", step).sql.split(";") if part.strip()]


@asynccontextmanager
async def building(caller: AsyncCaller) -> AsyncIterator[None]:
    """Be the only migrate that builds indexes, waiting no longer than 30 s for a lock.

    Raises AkadzeError in a transaction, through a pooler, and when another one has been building for 30 s.
    """
    before = await _read_session(caller)
    for _ in range(_PAUSES):
        if (await caller.rows(_TAKE_TURN))[0]["taken"]:
            break
        await caller.rows(_PAUSE)
    else:
        raise AkadzeError("another migrate is building indexes: run this one again when that has ended")
    try:
        await caller.rows(_LIMIT_BUILDING)
        yield
    except BaseException:
        with suppress(Exception):  # what has happened is told, not that it cannot be undone on a lost connection
            await caller.rows(_GIVE_TURN, **before)
        raise
    await caller.rows(_GIVE_TURN, **before)


async def _read_session(caller: AsyncCaller) -> dict[str, str]:
    """Return the session's timeouts. Raises AkadzeError in a transaction, and behind a pooler."""
    # Django's connection has the driver's in ``connection``. All drivers on libpq tell these two.
    info: Any = getattr(caller.connection, "connection", caller.connection).info
    if info.transaction_status:
        raise AkadzeError("a pending migration builds an index, which no transaction allows: migrate outside of one")
    session = (await caller.rows(_READ_SESSION))[0]
    if session.pop("pid") != info.backend_pid:
        raise AkadzeError(
            "a pending migration builds an index, which takes a session of its own; this address is that of a pooler"
            " such as PgBouncer: migrate with the address of PostgreSQL itself"
        )
    return session
