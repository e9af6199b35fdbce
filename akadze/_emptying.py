"""Empties akadze's tables after a test."""

from __future__ import annotations

from typing import Final

from akadze._connections import SyncCaller
from akadze._sqlstates import DEADLOCK_DETECTED, sqlstate
from akadze._statement import statement

_EMPTY_TABLES = statement("testing", "empty_tables")

#: One may meet each of several workers.
_TRIES: Final = 10


def empty_tables(caller: SyncCaller) -> None:
    """Delete all rows of akadze's tables, in the caller's transaction where there is one.

    It locks one table after another, and a worker that is still at work on them may have begun with the last one. The
    server then ends the waiting of one of the two, and what is undone here frees the worker, so it is tried again.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            with caller.savepoint():
                caller.rows(_EMPTY_TABLES)
        except Exception as error:
            if sqlstate(error) != DEADLOCK_DETECTED or not tries_left:
                raise
        else:
            return
