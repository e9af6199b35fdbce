"""Contract, section 10: workers that fire one slot of a schedule at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from akadze._statement import statement
from tests.claims.clients import Client, Row, Watcher, variant
from tests.claims.fixtures import Connect
from tests.claims.line import Line

_LOCK_TASK = statement("schedules", "lock_task")
_FIRE_SLOT = statement("schedules", "fire_slot")
_SLOT: dict[str, Any] = {
    "task": "report",
    "slot": datetime(2026, 6, 1, 12, tzinfo=UTC),
    "queue": "default",
    "overlap": True,
    "max_attempts": 3,
}


@pytest.fixture
async def three(connect: Connect) -> list[Client]:
    return [await connect() for _ in range(3)]


async def lock(client: Client) -> bool:
    return bool((await client.run(_LOCK_TASK, task="report"))[0]["locked"])


async def fire(client: Client) -> Row:
    return (await client.run(_FIRE_SLOT, **_SLOT))[0]


async def test_while_one_worker_fires_a_slot_the_others_step_back_and_then_see_it_done(
    line: Line, three: list[Client]
) -> None:
    first, *others = three
    await first.begin()
    assert await lock(first)
    assert (await fire(first))["id"] is not None
    for other in others:
        async with other.transaction():
            assert not await lock(other)
    await first.commit()

    for other in others:
        async with other.transaction():
            assert await lock(other)
            row = await fire(other)
            assert (row["done"], row["id"]) == (True, None)
    assert await line.states() == {"queued": 1}


async def test_a_worker_that_came_without_the_lock_would_be_refused_with_its_job(
    line: Line, three: list[Client], watcher: Watcher
) -> None:
    first, second, _ = three
    await first.begin()
    await fire(first)
    waiting = await watcher.start_and_see_waiting(fire(second))
    await first.commit()

    with pytest.raises(psycopg.errors.UniqueViolation):
        await waiting
    assert await line.states() == {"queued": 1}


async def test_without_marks_each_worker_would_fire_the_slot(line: Line, three: list[Client]) -> None:
    start = _FIRE_SLOT.sql.index("), marked as (")
    stop = _FIRE_SLOT.sql.index(")\nselect s.done")
    careless = variant(_FIRE_SLOT, (_FIRE_SLOT.sql[start:stop], ""))

    await asyncio.gather(*[client.run(careless, **_SLOT) for client in three])

    assert await line.states() == {"queued": 3}
