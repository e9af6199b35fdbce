"""Limits: set, clear, list."""

from __future__ import annotations

from datetime import timedelta

from akadze import _rows
from akadze._connections import async_caller, async_reading
from akadze._options import check_limit, check_limit_key
from akadze._session_types import AnyAsyncSession, AnyAsyncSource
from akadze._statement import statement
from akadze.errors import AkadzeError
from akadze.summaries import LimitSummary

_SET_LIMIT = statement("limits", "set_limit")
_DELETE_LIMIT = statement("limits", "delete_limit")
_DELETE_STARTS = statement("limits", "delete_starts")
_LIST_LIMITS = statement("limits", "list_limits")


async def set_limit(
    session: AnyAsyncSession,
    key: str,
    max_running: int | None = None,
    *,
    max_starts: int | None = None,
    window: timedelta | None = None,
) -> None:
    """Upsert limit policies for a limit_key, in the transaction of the session. Omitted fields keep previous values.

    ``max_running`` caps how many jobs with the key run at once, cluster-wide; 0 lets none start. ``max_starts`` with
    ``window`` (set together) caps how many start in a sliding window. Works while jobs run. Raises AkadzeError for
    values that are not allowed, or a session that cannot be used.
    """
    caller = async_caller(session, error=AkadzeError)
    checked = check_limit(key, max_running, max_starts, window)
    # Plain numbers: not every driver writes a member of an enum.
    running = None if max_running is None else int(max_running)
    starts = None if max_starts is None else int(max_starts)
    seconds = None if window is None else window.total_seconds()
    await caller.rows(_SET_LIMIT, key=checked, max_running=running, max_starts=starts, window=seconds)


async def clear_limit(session: AnyAsyncSession, key: str) -> None:
    """Delete the limits row and the start marks for key, in the transaction of the session. Idempotent.

    The key is unlimited then: jobs that carry it are claimed like jobs with no limit. A later ``set_limit`` starts its
    rate window from zero. Raises AkadzeError for a session that cannot be used.
    """
    caller = async_caller(session, error=AkadzeError)
    checked = check_limit_key(key)
    await caller.rows(_DELETE_LIMIT, key=checked)
    await caller.rows(_DELETE_STARTS, key=checked)


async def list_limits(engine: AnyAsyncSource) -> tuple[LimitSummary, ...]:
    """Return every limits row, ordered by key. Does not mutate state.

    Raises AkadzeError for what cannot be read from.
    """
    async with async_reading(engine) as caller:
        rows = await caller.rows(_LIST_LIMITS)
    return tuple(_rows.limit_summary(row) for row in rows)
