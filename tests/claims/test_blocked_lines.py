"""Contract, section 9: what cannot start never hides what can, however much of it stands in front."""

from __future__ import annotations

import pytest

from tests.claims.claiming import CHOOSE_FAIR, CHOOSE_LIMITED, Claimer
from tests.claims.exchanges import MakeExchange
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids


@pytest.fixture(params=[CHOOSE_LIMITED, CHOOSE_FAIR], ids=["limited", "fair"])
async def claimer(request: pytest.FixtureRequest, connect: Connect) -> Claimer:
    return Claimer(await connect(), choose=request.param)


@pytest.mark.parametrize("fair", [False, True], ids=["by age", "fair"])
@pytest.mark.parametrize("limit", ["running", "starts"])
async def test_b104_a_key_at_its_limit_in_front_of_all_does_not_starve_the_others(
    line: Line, make_exchange: MakeExchange, limit: str, fair: bool
) -> None:
    if limit == "running":
        await line.limit("a", 1)
    else:
        await line.limit("a", max_starts=1, window=3600)
    a = await line.add(5000, key="a", after=-10)
    b = await line.add(10, key="b")
    exchange = await make_exchange(fair=fair)

    first = await exchange.exchange([], {"default": 4})
    second = await exchange.exchange([], {"default": 8})

    assert row_ids(first.rows) == [a[0], *b[:3]]
    assert row_ids(second.rows) == b[3:]
    assert await line.running("a") == a[:1]


@pytest.mark.parametrize("limit", [{"max_running": 0}, {"max_starts": 0, "window": 60}], ids=["running", "starts"])
async def test_many_keys_at_their_limits_in_front_of_all_do_not_starve_the_others(
    line: Line, claimer: Claimer, limit: dict[str, int]
) -> None:
    """More keys than there is room for jobs, and more jobs than are read before the lanes are asked."""
    for number in range(30):
        await line.limit(f"full {number}", **limit)
        await line.add(10, key=f"full {number}", after=-10)
    free = [await line.add_one(key="k"), await line.add_one()]

    assert ids(await claimer.claim(2)) == free


async def test_b107_a_job_planned_for_later_takes_no_place_of_its_key(line: Line, make_exchange: MakeExchange) -> None:
    await line.limit("k", 1)
    await line.add(key="k", after=3600, priority=100)
    ready = await line.add(5, key="k")
    exchange = await make_exchange()
    begun: list[int] = []
    finished: list[tuple[int, int, str]] = []

    for _ in ready:
        answer = await exchange.exchange(finished, {"default": 3})
        begun += row_ids(answer.rows)
        finished = [(row[0], row[6], f'{{"id":{row[0]},"run":1,"state":"succeeded"}}') for row in answer.rows]

    assert begun == ready


@pytest.mark.parametrize("key", [None, "k"])
async def test_thousands_of_jobs_of_unknown_tasks_are_stepped_over(
    line: Line, make_exchange: MakeExchange, key: str | None
) -> None:
    await line.add(3000, task="elsewhere", key=key, after=-10)
    known = await line.add(3, key=key)
    exchange = await make_exchange()

    assert row_ids((await exchange.exchange([], {"default": 5})).rows) == known


async def test_an_unstartable_head_of_a_lane_does_not_hide_the_rest_of_it(line: Line, claimer: Claimer) -> None:
    """Deep in the line, where lanes are looked at by their heads."""
    await line.limit("full", 0)
    await line.add(400, key="full", after=-60)
    await line.add(5, key="k", task="elsewhere", after=-50)
    await line.add(5, key="k", expires_after=-1, after=-50)
    await line.add(5, cancel_after=-1, after=-50)
    good = [await line.add_one(key="k", after=-40), await line.add_one(after=-30)]

    assert ids(await claimer.claim(5)) == good


async def test_a_blocked_level_lets_lower_priorities_through(line: Line, claimer: Claimer) -> None:
    await line.limit("full", 0)
    for priority in (9, 5, 3):
        await line.add(300, key="full", priority=priority)
    low = await line.add(4, priority=-3)

    assert ids(await claimer.claim(3)) == low[:3]


async def test_a_blocked_key_of_one_queue_does_not_hold_up_another_queue(line: Line, claimer: Claimer) -> None:
    await line.limit("a", 1)
    a = await line.add(300, key="a", queue="one")
    b = await line.add(3, queue="two")

    assert ids(await claimer.claim({"one": 2, "two": 2})) == [a[0], *b[:2]]


async def test_jobs_behind_more_keys_than_one_claim_looks_at_are_found_by_the_next_ones(
    line: Line, make_exchange: MakeExchange
) -> None:
    """A claim looks at 300 keys of a level and asks to be repeated while it has not filled its slots."""
    await line.client.sql(
        "insert into akadze.limits (key, max_running) select 'k' || n, 0 from generate_series(1, 1000) n"
    )
    await line.client.sql(
        "insert into akadze.jobs (task, limit_key, run_at) select 'work', 'k' || n, now() - interval '1 minute'"
        " from generate_series(1, 1000) n"
    )
    last = await line.add_one(key="zz")
    exchange = await make_exchange()
    found: list[int] = []

    for _ in range(4):
        answer = await exchange.exchange([], {"default": 2})
        found += row_ids(answer.rows)
        if not answer.again:
            break

    assert found == [last]
    assert not (await exchange.exchange([], {"default": 2})).rows


@pytest.mark.parametrize("fair", [False, True], ids=["limited", "fair"])
async def test_keys_of_one_level_do_not_keep_those_of_another_from_being_looked_at(
    line: Line, make_exchange: MakeExchange, fair: bool
) -> None:
    """The keys of the lower level come after those of the higher one, which has more than one claim looks at."""
    await line.client.sql(
        "insert into akadze.limits (key, max_running)"
        " select prefix || n, 0 from generate_series(1, 700) n, unnest(array['a', 'z']) prefix"
    )
    await line.client.sql(
        "insert into akadze.jobs (task, limit_key, priority, run_at)"
        " select 'work', case priority when 5 then 'a' else 'z' end || n, priority, now() - interval '1 minute'"
        " from generate_series(1, 700) n, unnest(array[5, 0]) priority"
    )
    hidden = [await line.add_one(key="b", priority=5), await line.add_one(key="zz")]
    exchange = await make_exchange(fair=fair)
    found: list[int] = []

    for _ in range(10):
        answer = await exchange.exchange([], {"default": 4})
        found += row_ids(answer.rows)
        if not answer.again:
            break

    assert found == hidden
    assert not answer.again
