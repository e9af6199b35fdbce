"""What a claim has chosen is looked at again after it has waited for the lock of a limit."""

from __future__ import annotations

import pytest

from akadze import pause_queue
from tests.claims.clients import Watcher
from tests.claims.exchanges import MakeExchange
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
