"""Contract, section 9: claims that wait for the lock of a limit, for as long as a caller's transaction is open."""

from __future__ import annotations

import asyncio

import pytest

from akadze import pause_queue, set_limit
from tests.claims.clients import Watcher
from tests.claims.exchanges import MakeExchange, done
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line


@pytest.mark.parametrize(
    "change",
    [
        "cancel_requested_at = clock_timestamp()",
        "expires_at = clock_timestamp()",
        "run_at = now() + interval '1 hour', run_count = 1",  # another worker ran it and put it back
    ],
    ids=["cancelled", "expired", "put back for later"],
)
async def test_a_job_that_may_not_start_any_more_after_a_claim_waited_is_not_started(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher, change: str
) -> None:
    await line.limit("k", 5)
    job_id = await line.add_one(key="k")
    other = await line.add_one(key="k")
    caller, changer = await connect(), await connect()
    exchange = await make_exchange()

    async with caller.transaction():
        await caller.sql("select from akadze.limits for update")
        waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 10}))
        await changer.sql(f"update akadze.jobs set {change} where id = %s", [job_id])

    assert row_ids((await waiting).rows) == [other]
    assert await line.state(job_id) == "queued"


async def test_nothing_starts_of_a_queue_that_is_paused_while_a_claim_waits(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher
) -> None:
    await line.limit("k", 5)
    await line.add(key="k")
    caller, other = await connect(), await connect()
    exchange = await make_exchange()

    async with caller.transaction():
        await caller.sql("select from akadze.limits for update")
        waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 10}))
        await pause_queue(other.raw, "default")

    assert (await waiting).rows == []


@pytest.mark.parametrize("fair", [False, True], ids=["limited", "fair"])
async def test_a_limit_that_a_caller_holds_keeps_neither_outcomes_nor_jobs_without_limits_waiting(
    line: Line, connect: Connect, make_exchange: MakeExchange, monkeypatch: pytest.MonkeyPatch, fair: bool
) -> None:
    monkeypatch.setattr("akadze._worker.exchange._PATIENCE", 0.05)
    await line.limit("k", 5)
    limited = await line.add(3, key="k")
    free = await line.add(3)
    caller = await connect()
    exchange = await make_exchange(fair=fair)
    [begun] = (await exchange.exchange([], {"default": 1})).rows

    async with caller.transaction():
        await set_limit(caller.raw, "k", 2)
        answer = await asyncio.wait_for(exchange.exchange([done(begun)], {"default": 2}), 20)
        assert answer.written == {(limited[0], 1)}
        assert row_ids(answer.rows) == free[:2]
        # Until the next look around it does not wait for the limit again.
        assert row_ids((await exchange.exchange([], {"default": 2})).rows) == free[2:]

    await exchange.survey()
    assert row_ids((await exchange.exchange([], {"default": 5})).rows) == limited[1:]
