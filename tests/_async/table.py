"""What the table of jobs holds, as tests compare it."""

from __future__ import annotations

from typing import Any

from .conftest import Rows


async def numbers(rows: Rows) -> list[Any]:
    """Return the argument ``n`` of all jobs, in the order in which they were inserted."""
    return [row["n"] for row in await rows("select args -> 'n' as n from akadze.jobs order by id")]


async def states(rows: Rows) -> list[str]:
    """Return the states of all jobs, in the order in which they were inserted."""
    return [row["state"] for row in await rows("select state from akadze.jobs order by id")]


async def ids(rows: Rows) -> list[int]:
    """Return the ids of all jobs, in the order in which they were inserted."""
    return [row["id"] for row in await rows("select id from akadze.jobs order by id")]
