"""Contract, section 9: within a priority, each free slot goes to the group with the fewest running in the queue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.claims.claiming import CHOOSE_FAIR, Claimer
from tests.claims.clients import Row
from tests.claims.exchanges import MakeExchange, done
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids


@pytest.fixture
async def fair(connect: Connect) -> Claimer:
    return Claimer(await connect(), choose=CHOOSE_FAIR)


def keys(rows: Sequence[Row]) -> list[str | None]:
    return [row["limit_key"] for row in rows]


async def test_b106_a_busy_tenant_keeps_nobody_waiting(line: Line, make_exchange: MakeExchange) -> None:
    big = await line.add(2000, key="big")
    workers = [await make_exchange(fair=True), await make_exchange(fair=True)]
    running = [(worker, row) for worker in workers for row in (await worker.exchange([], {"default": 2})).rows]
    assert row_ids([row for _, row in running]) == big[:4]
    others = {*await line.add(2, key="small"), *await line.add(2)}

    # Slots come free one at a time: the run that began first ends first.
    begun: list[int] = []
    while not others <= {*begun}:
        worker, ended = running.pop(0)
        (claimed,) = (await worker.exchange([done(ended)], {"default": 1})).rows
        running.append((worker, claimed))
        begun.append(claimed[0])

    assert len(begun) - len(others) < 5, "the fifth next job of the busy tenant came before one of the others"
    urgent = await line.add_one(key="big", priority=1)
    worker, ended = running.pop(0)
    assert row_ids((await worker.exchange([done(ended)], {"default": 1})).rows) == [urgent]


async def test_without_fair_the_oldest_job_goes_first(line: Line, make_exchange: MakeExchange) -> None:
    big = await line.add(20, key="big")
    await line.add(2, key="small")
    exchange = await make_exchange()

    assert row_ids((await exchange.exchange([], {"default": 5})).rows) == big[:5]


async def test_several_slots_are_shared_as_if_they_came_free_one_by_one(line: Line, fair: Claimer) -> None:
    await line.add(10, key="a", after=-30)
    await line.add(3, key="b", after=-20)
    await line.add(1, key="c", after=-10)
    await line.add(2, after=-5)

    assert keys(await fair.claim(9)) == ["a", "b", "c", None, "a", "b", None, "a", "b"]
    assert keys(await fair.claim(3)) == ["a", "a", "a"]


async def test_ties_go_to_the_oldest_job(line: Line, fair: Claimer) -> None:
    await line.add(2, key="z", after=-30)
    await line.add(2, key="a", after=-20)
    await line.add(2, key="m", after=-25)

    assert keys(await fair.claim(1)) == ["z"]
    assert keys(await fair.claim(1)) == ["m"]
    assert keys(await fair.claim(1)) == ["a"]
    assert keys(await fair.claim(1)) == ["z"]


async def test_priority_comes_before_fairness(line: Line, fair: Claimer) -> None:
    await line.add(5, key="big", state="running")
    urgent = await line.add(2, key="big", priority=1)
    small = await line.add(1, key="small")

    assert ids(await fair.claim(3)) == [*urgent, *small]


async def test_runs_of_other_workers_in_the_queue_count_and_those_of_other_queues_do_not(
    line: Line, fair: Claimer
) -> None:
    await line.add(2, key="here", state="running")
    await line.add(5, key="elsewhere", state="running", queue="other")
    await line.add(3, key="here", after=-60)
    await line.add(3, key="elsewhere")

    assert keys(await fair.claim(3)) == ["elsewhere", "elsewhere", "here"]


async def test_jobs_without_a_key_are_one_group(line: Line, fair: Claimer) -> None:
    await line.add(3, after=-60)
    await line.add(3, after=-60, task="other")
    await line.add(3, key="a")
    both = Claimer(fair.client, choose=CHOOSE_FAIR, tasks=("other", "work"))

    assert keys(await both.claim(4)) == [None, "a", None, "a"]


async def test_limits_hold_in_a_fair_claim(line: Line, fair: Claimer) -> None:
    await line.limit("a", 1)
    await line.limit("b", max_starts=2, window=60)
    await line.add(5, key="a", after=-30)
    await line.add(5, key="b", after=-20)
    await line.add(5, key="c", after=-10)

    assert keys(await fair.claim(9)) == ["a", "b", "c", "b", "c", "c", "c", "c"]


async def test_a_run_that_ends_in_the_same_exchange_counts_no_more(line: Line, make_exchange: MakeExchange) -> None:
    await line.add(3, key="a", after=-60)
    await line.add(3, key="b", state="running")
    b = await line.add(3, key="b", after=-90)
    exchange = await make_exchange(fair=True)
    begun = (await exchange.exchange([], {"default": 3})).rows
    assert [row[13] for row in begun] == ["a", "a", "a"]

    await line.add(3, key="a", after=-60)
    answer = await exchange.exchange([done(row) for row in begun], {"default": 3})
    assert [row[13] for row in answer.rows] == ["a", "a", "a"]
    answer = await exchange.exchange([], {"default": 1})
    assert row_ids(answer.rows) == b[:1]


async def test_each_slot_that_comes_free_goes_to_the_group_with_the_fewest_running(
    line: Line, connect: Connect
) -> None:
    """Three workers whose slots come free one at a time, against the count before each claim."""
    workers = [Claimer(await connect(), choose=CHOOSE_FAIR, lanes=300) for _ in range(3)]
    for number, key in enumerate(["a", "b", "c", "d", None]):
        await line.add(40, key=key, after=-90 + number)
    running: list[tuple[Claimer, Row]] = []
    for step in range(60):
        if len(running) >= 7:
            # Those of one key are long runs: they end last.
            place = next((n for n, (_, row) in enumerate(running) if row["limit_key"] != "a"), 0)
            owner, ended = running.pop(place)
            await owner.finish([ended])
        before = [row["limit_key"] for _, row in running]
        claimer = workers[step % 3]
        (claimed,) = await claimer.claim(1)
        running.append((claimer, claimed))
        fewest = min(before.count(key) for key in ["a", "b", "c", "d", None])
        assert before.count(claimed["limit_key"]) == fewest


async def test_groups_beyond_those_that_one_claim_looks_at_have_their_turn(
    line: Line, make_exchange: MakeExchange
) -> None:
    """A claim looks at 300 groups of a level; the next ones go on from there."""
    await line.client.sql(
        "insert into akadze.jobs (task, limit_key, run_at)"
        " select 'work', 'k' || lpad(cast(n as text), 4, '0'), now() - interval '1 minute'"
        " from generate_series(1, 700) n, generate_series(1, 2)"
    )
    exchange = await make_exchange(fair=True)
    served: set[str] = set()

    for _ in range(30):
        served |= {row[13] for row in (await exchange.exchange([], {"default": 40})).rows}

    # 1,200 starts and 700 groups with two jobs each: nobody waits for a second turn of others.
    assert len(served) == 700


async def test_a_key_that_comes_into_a_line_without_keys_is_served_by_the_very_next_claim(
    line: Line, make_exchange: MakeExchange
) -> None:
    """Jobs without key are one group: alone they are claimed in the plain way, which costs less."""
    exchange = await make_exchange(fair=True)
    await line.add(100)
    assert not (await exchange.survey()).keyed
    assert len((await exchange.exchange([], {"default": 5})).rows) == 5

    keyed = await line.add_one(key="tenant")
    refused = await exchange.exchange([], {"default": 2})
    answer = await exchange.exchange([], {"default": 2})

    assert (refused.rows, refused.again) == ([], True)
    assert row_ids(answer.rows)[0] == keyed
    assert (await exchange.survey()).keyed is False


async def test_a_plain_claim_of_a_fair_worker_leaves_only_the_queues_with_keys_alone(
    line: Line, connect: Connect
) -> None:
    claimer = Claimer(await connect(), fair=True)
    first = await line.add_one()
    await line.add_one(queue="keyed")
    await line.add_one(queue="keyed", key="k")

    assert ids(await claimer.claim({"default": 2, "keyed": 2})) == [first]
    assert len(await Claimer(claimer.client).claim({"keyed": 2})) == 2
