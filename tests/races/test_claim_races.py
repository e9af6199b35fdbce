"""Contract, section 9: claims that meet: each job is taken once, and nobody waits for a job that another holds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from uuid import uuid4

import pytest

from akadze import request_cancel
from tests.claims.claiming import CHOOSE_FAIR, CHOOSE_LIMITED, CLAIM_PLAIN, TAKE_CHOSEN, Claimer
from tests.claims.clients import Watcher, variant
from tests.claims.exchanges import MakeExchange
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids


@pytest.fixture(params=[None, CHOOSE_LIMITED, CHOOSE_FAIR], ids=["plain", "limited", "fair"])
async def first(request: pytest.FixtureRequest, connect: Connect) -> Claimer:
    return Claimer(await connect(), choose=request.param)


@pytest.fixture
async def second(first: Claimer, connect: Connect) -> Claimer:
    """Another worker that claims in the same way."""
    return replace(first, client=await connect(), worker=uuid4())


def without_locks(claimer: Claimer) -> Claimer:
    """A worker that does not lock the jobs that it reads."""
    return replace(
        claimer,
        plain=variant(CLAIM_PLAIN, ("for update skip locked", "")),
        take=variant(TAKE_CHOSEN, ("for update of j skip locked", "")),
    )


def without_skipping(claimer: Claimer) -> Claimer:
    """A worker that waits for jobs that are locked."""
    return replace(
        claimer,
        plain=variant(CLAIM_PLAIN, ("for update skip locked", "for update")),
        take=variant(TAKE_CHOSEN, ("for update of j skip locked", "for update of j")),
    )


async def claim_while_open(first: Claimer, second: Claimer, watcher: Watcher) -> tuple[list[int], list[int]]:
    """Let the second claim while the first has not committed; return what each has taken."""
    await first.client.begin()
    if first.choose is None:
        mine = await first.claim_plain(3)
    else:
        await first.choose_jobs(3)
        mine = await first.take_jobs(3)
    other = await watcher.start(second.claim(3))
    await first.client.commit()
    return ids(mine), ids(await other)


async def test_two_claims_never_take_one_job(line: Line, first: Claimer, second: Claimer, watcher: Watcher) -> None:
    jobs = await line.add(10)

    taken = await claim_while_open(first, second, watcher)

    assert taken == (jobs[:3], jobs[3:6])


async def test_without_locks_a_second_claim_would_wait_and_take_none(
    line: Line, first: Claimer, second: Claimer, watcher: Watcher
) -> None:
    jobs = await line.add(10)

    taken = await claim_while_open(without_locks(first), without_locks(second), watcher)

    # It updates the very versions that it has chosen, and these are gone by then.
    assert taken == (jobs[:3], [])


async def test_a_claim_steps_over_a_job_that_a_caller_holds(line: Line, first: Claimer, connect: Connect) -> None:
    jobs = await line.add(3)
    caller = await connect()

    async with caller.transaction():
        await request_cancel(caller.raw, jobs[0])
        assert ids(await first.claim(3)) == jobs[1:]

    assert await line.state(jobs[0]) == "queued"


async def test_without_skipping_a_claim_would_wait_for_a_job_that_a_caller_holds(
    line: Line, first: Claimer, connect: Connect, watcher: Watcher
) -> None:
    jobs = await line.add(3)
    caller = await connect()

    async with caller.transaction():
        await request_cancel(caller.raw, jobs[0])
        claim = await watcher.start_and_see_waiting(without_skipping(first).claim(3))

    assert ids(await claim) == jobs[1:]


async def test_an_exchange_waits_for_no_job_that_a_caller_holds(
    line: Line, make_exchange: MakeExchange, connect: Connect
) -> None:
    jobs = await line.add(3)
    caller = await connect()
    exchange = await make_exchange()

    async with caller.transaction():
        await request_cancel(caller.raw, jobs[0])
        assert row_ids((await exchange.exchange([], {"default": 3})).rows) == jobs[1:]


async def take_after_waiting(
    waiting: Claimer, quick: Claimer, line: Line, watcher: Watcher, connect: Connect
) -> tuple[list[int], list[int]]:
    """Let a claim wait for a limit after it has chosen, and another take what it has chosen meanwhile."""
    await line.limit("k", 1)
    await line.add(1, key="k", after=-60)
    await line.add(4)
    caller = await connect()
    async with caller.transaction():
        await caller.sql("select from akadze.limits for update")
        claim = await watcher.start_and_see_waiting(waiting.claim(5))
        quickly = ids(await quick.claim(3))
    return quickly, ids(await claim)


@pytest.mark.parametrize("choose", [CHOOSE_LIMITED, CHOOSE_FAIR], ids=["limited", "fair"])
async def test_what_others_took_while_a_claim_waited_is_not_taken_again(
    line: Line, connect: Connect, watcher: Watcher, choose: object
) -> None:
    waiting = Claimer(await connect(), choose=choose)  # type: ignore[arg-type]  # one of the two statements
    quick = Claimer(await connect())

    quickly, slowly = await take_after_waiting(waiting, quick, line, watcher, connect)

    assert len(quickly) == 3
    assert len(slowly) == 2
    assert not {*quickly} & {*slowly}


async def test_if_a_claim_did_not_look_again_it_would_take_what_others_took_while_it_waited(
    line: Line, connect: Connect, watcher: Watcher
) -> None:
    careless = variant(TAKE_CHOSEN, (" and k.state || '' = 'queued'", ""), ("j.state || '' = 'queued' and ", ""))
    waiting = Claimer(await connect(), choose=CHOOSE_LIMITED, take=careless)
    quick = Claimer(await connect())

    quickly, slowly = await take_after_waiting(waiting, quick, line, watcher, connect)

    assert {*quickly} & {*slowly}


async def test_many_claims_at_once_take_each_job_once(line: Line, make_exchange: MakeExchange, way: object) -> None:
    await line.limit("a", 1000)
    await line.add(60, key="a")
    await line.add(60, key="b", priority=1)
    await line.add(80)
    exchanges = [await make_exchange(fair=number % 2 == 1, look=number != 4) for number in range(5)]
    chance = random.Random(7)

    async def claim_all(exchange: object, sizes: list[int]) -> list[int]:
        found: list[int] = []
        empty = 0
        for size in sizes:
            rows = (await exchange.exchange([], {"default": size})).rows  # type: ignore[attr-defined]  # an Exchange
            found += row_ids(rows)
            empty = 0 if rows else empty + 1
            if empty == 5:
                break
        return found

    taken = await asyncio.gather(
        *[claim_all(exchange, [chance.randint(1, 12) for _ in range(100)]) for exchange in exchanges]
    )

    counts = Counter(job for jobs in taken for job in jobs)
    assert len(counts) == 200
    assert set(counts.values()) == {1}
    assert await line.client.sql("select distinct run_count from akadze.jobs") == [{"run_count": 1}]
