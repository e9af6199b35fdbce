"""Savepoints and transactions by statements, for connections whose own do not fit. Both colours side by side.

They stand only around a user's hook, or around a statement whose error the caller's transaction has to survive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

from akadze._sqlstates import NO_ACTIVE_TRANSACTION, sqlstate
from akadze._statement import Statement, statement

_BEGIN_WORK = statement("session", "begin_work")
_BEGIN = statement("session", "begin")
_COMMIT = statement("session", "commit")
_ROLLBACK = statement("session", "rollback")
_OPEN_SAVEPOINT = statement("session", "open_savepoint")
_RELEASE_SAVEPOINT = statement("session", "release_savepoint")
_RETURN_TO_SAVEPOINT = statement("session", "return_to_savepoint")


class AsyncRows(Protocol):
    """What executes a statement; awaited."""

    async def rows(self, statement: Statement, **parameters: Any) -> list[dict[str, Any]]:
        """Execute on the caller's connection."""


class SyncRows(Protocol):
    """What executes a statement; blocking."""

    def rows(self, statement: Statement, **parameters: Any) -> list[dict[str, Any]]:
        """Execute on the caller's connection."""


@contextmanager
def savepoint(caller: SyncRows) -> Iterator[None]:
    """Open a savepoint in the caller's transaction."""
    caller.rows(_OPEN_SAVEPOINT)
    with _kept(caller):
        yield


@asynccontextmanager
async def async_savepoint(caller: AsyncRows) -> AsyncIterator[None]:
    """Open a savepoint in the caller's transaction."""
    await caller.rows(_OPEN_SAVEPOINT)
    async with _async_kept(caller):
        yield


@contextmanager
def savepoint_in_autocommit(caller: SyncRows) -> Iterator[None]:
    """Open a savepoint, or a transaction where the caller, who is in autocommit, has not begun one by a statement.

    Asking the server costs nothing there: outside a transaction its error breaks nothing.
    """
    try:
        caller.rows(_OPEN_SAVEPOINT)
        begun = True
    except Exception as error:
        if sqlstate(error) != NO_ACTIVE_TRANSACTION:
            raise
        begun = False
    if begun:
        with _kept(caller):
            yield
    else:
        with transaction(caller):
            yield


@asynccontextmanager
async def async_savepoint_in_autocommit(caller: AsyncRows) -> AsyncIterator[None]:
    """Open a savepoint or a transaction, as ``savepoint_in_autocommit`` does."""
    try:
        await caller.rows(_OPEN_SAVEPOINT)
        begun = True
    except Exception as error:
        if sqlstate(error) != NO_ACTIVE_TRANSACTION:
            raise
        begun = False
    if begun:
        async with _async_kept(caller):
            yield
    else:
        async with async_transaction(caller):
            yield


@contextmanager
def transaction(caller: SyncRows) -> Iterator[None]:
    """Begin, and commit at a clean exit. Only for a connection in autocommit that is not in a transaction."""
    caller.rows(_BEGIN)
    try:
        yield
        # Where an error of the database was swallowed, this raises; COMMIT would roll back and say nothing.
        caller.rows(_BEGIN_WORK)
    except BaseException:
        with suppress(Exception):  # what has happened is told, not that it cannot be undone on a lost connection
            caller.rows(_ROLLBACK)
        raise
    caller.rows(_COMMIT)


@asynccontextmanager
async def async_transaction(caller: AsyncRows) -> AsyncIterator[None]:
    """Begin, and commit at a clean exit, as ``transaction`` does."""
    await caller.rows(_BEGIN)
    try:
        yield
        await caller.rows(_BEGIN_WORK)
    except BaseException:
        with suppress(Exception):
            await caller.rows(_ROLLBACK)
        raise
    await caller.rows(_COMMIT)


@contextmanager
def _kept(caller: SyncRows) -> Iterator[None]:
    try:
        yield
        caller.rows(_RELEASE_SAVEPOINT)
    except BaseException:
        with suppress(Exception):
            caller.rows(_RETURN_TO_SAVEPOINT)
            caller.rows(_RELEASE_SAVEPOINT)
        raise


@asynccontextmanager
async def _async_kept(caller: AsyncRows) -> AsyncIterator[None]:
    try:
        yield
        await caller.rows(_RELEASE_SAVEPOINT)
    except BaseException:
        with suppress(Exception):
            await caller.rows(_RETURN_TO_SAVEPOINT)
            await caller.rows(_RELEASE_SAVEPOINT)
        raise
