"""Contract, section 9: what one claim may start under limits, and what set_limit and clear_limit change."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from akadze import AkadzeError, LimitSummary, clear_limit, list_limits, set_limit
from tests.claims.claiming import CHOOSE_FAIR, CHOOSE_LIMITED, Claimer
from tests.claims.exchanges import MakeExchange, done
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids

SECOND = timedelta(seconds=1)


@pytest.fixture(params=[CHOOSE_LIMITED, CHOOSE_FAIR], ids=["limited", "fair"])
async def claimer(request: pytest.FixtureRequest, connect: Connect) -> Claimer:
    return Claimer(await connect(), choose=request.param)


async def test_no_more_run_at_once_than_max_running_and_the_batch_counts_itself(
    line: Line, make_exchange: MakeExchange
) -> None:
    await line.limit("k", 3)
    jobs = await line.add(20, key="k")
    free = await line.add(2, priority=-1)
    exchange = await make_exchange()

    begun = (await exchange.exchange([], {"default": 10})).rows
    assert row_ids(begun) == [*jobs[:3], *free]

    assert (await exchange.exchange([], {"default": 10})).rows == []
    # A place that a finish frees is taken in the same exchange.
    assert row_ids((await exchange.exchange([done(begun[0])], {"default": 10})).rows) == [jobs[3]]
    assert len(await line.running("k")) == 3


async def test_b103_no_more_start_in_a_window_than_max_starts_and_the_batch_counts_itself(
    line: Line, make_exchange: MakeExchange
) -> None:
    await line.limit("r", max_starts=3, window=5)
    limited = await line.add(10, key="r")
    free = await line.add(10)
    exchange = await make_exchange()

    begun = (await exchange.exchange([], {"default": 20})).rows
    assert sorted(row_ids(begun)) == sorted([*limited[:3], *free])

    # Ended runs do not give their starts back.
    assert (await exchange.exchange([done(row) for row in begun], {"default": 20})).rows == []
    await line.age_starts("r", 4)
    assert (await exchange.exchange([], {"default": 20})).rows == []
    await line.age_starts("r", 1.01)
    assert row_ids((await exchange.exchange([], {"default": 20})).rows) == limited[3:6]


async def test_the_window_slides_start_by_start(line: Line, claimer: Claimer) -> None:
    await line.limit("r", max_starts=2, window=10)
    jobs = await line.add(10, key="r")

    assert ids(await claimer.claim(1)) == jobs[:1]
    await line.age_starts("r", 6)
    assert ids(await claimer.claim(5)) == jobs[1:2]
    await line.age_starts("r", 5)  # the first start is 11 s old now, the second 5 s
    assert ids(await claimer.claim(5)) == jobs[2:3]
    await line.age_starts("r", 5.5)
    assert ids(await claimer.claim(5)) == jobs[3:4]
    assert await line.starts("r") == 2, "marks outside the window are forgotten by the claim"


async def test_both_limits_of_a_key_hold(line: Line, claimer: Claimer) -> None:
    await line.limit("k", 2, max_starts=3, window=10)
    jobs = await line.add(10, key="k")

    begun = await claimer.claim(5)
    assert ids(begun) == jobs[:2]
    await claimer.finish(begun)
    begun = await claimer.claim(5)
    assert ids(begun) == jobs[2:3]
    await claimer.finish(begun)
    assert await claimer.claim(5) == []


async def test_a_limit_holds_across_the_queues_of_one_claim(line: Line, claimer: Claimer) -> None:
    await line.limit("k", 3)
    await line.add(5, queue="a", key="k")
    await line.add(5, queue="b", key="k")

    assert len(await claimer.claim({"a": 5, "b": 5})) == 3
    assert len(await line.running("k")) == 3


async def test_a_limit_holds_across_workers_and_queues(line: Line, claimer: Claimer) -> None:
    await line.limit("k", 1)
    await line.add(5, queue="a", key="k", task="other")
    await line.add(5, queue="b", key="k")

    assert len(await replace(claimer, tasks=("other",)).claim({"a": 5})) == 1
    assert await claimer.claim({"b": 5}) == []


async def test_keys_are_limited_each_for_itself(line: Line, claimer: Claimer) -> None:
    await line.limit("a", 1)
    await line.limit("b", 2)
    a, b = await line.add(4, key="a"), await line.add(4, key="b")
    other = await line.add(2, key="c")

    assert sorted(ids(await claimer.claim(10))) == [a[0], *b[:2], *other]


@pytest.mark.parametrize("options", [{"max_running": 0}, {"max_starts": 0, "window": 60}])
async def test_zero_lets_nothing_start(line: Line, claimer: Claimer, options: dict[str, int]) -> None:
    await line.limit("k", **options)
    await line.add(3, key="k")

    assert await claimer.claim(5) == []


async def test_every_start_of_a_job_counts(line: Line, claimer: Claimer) -> None:
    await line.limit("r", max_starts=3, window=60)
    await line.add(1, key="r")

    for _ in range(3):
        begun = await claimer.claim(1)
        await claimer.finish(begun, "queued", delay=0)
    assert await claimer.claim(1) == []
    assert await line.starts("r") == 3


async def test_runs_of_a_lost_worker_count_until_they_are_taken_back(line: Line, claimer: Claimer) -> None:
    await line.limit("k", 1)
    lost = await line.add_one(key="k", state="running")
    waiting = await line.add_one(key="k")
    assert await claimer.claim(1) == []

    await line.client.sql(
        "update akadze.jobs set state = 'failed', worker_id = null, finished_at = now() where id = %s", [lost]
    )
    assert ids(await claimer.claim(1)) == [waiting]


async def test_an_outcome_of_a_run_that_lost_its_job_frees_no_place(line: Line, make_exchange: MakeExchange) -> None:
    """The claim chooses as if the outcomes that go with it were written, and counts again when they are."""
    await line.limit("k", 1)
    running = await line.add_one(key="k", state="running", run_count=2)
    await line.add(3, key="k")
    exchange = await make_exchange()

    late = (running, 1, f'{{"id":{running},"run":1,"state":"succeeded"}}')
    answer = await exchange.exchange([late], {"default": 5})

    assert (answer.written, answer.rows) == (set(), [])
    assert await line.running("k") == [running]


async def test_a_worker_that_knows_of_no_limits_leaves_limited_keys_alone(
    line: Line, make_exchange: MakeExchange
) -> None:
    """A plain claim is chosen once a second; a limit that is set in between holds at once."""
    exchange = await make_exchange()
    await line.add(5, key="k", priority=1)
    free = await line.add(2, key="other")
    await line.limit("k", 1)
    assert not exchange._stepping

    assert row_ids((await exchange.exchange([], {"default": 5})).rows) == free

    await exchange.survey()
    assert len((await exchange.exchange([], {"default": 5})).rows) == 1


async def test_set_limit_keeps_what_is_left_out(connect: Connect) -> None:
    client = await connect()
    await set_limit(client.raw, "k", 4)
    await set_limit(client.raw, "k", max_starts=100, window=timedelta(minutes=1))
    assert await list_limits(client.raw) == (LimitSummary("k", 4, 100, timedelta(minutes=1)),)

    await set_limit(client.raw, "k", max_running=2)
    await set_limit(client.raw, "a", max_starts=1, window=SECOND)
    assert await list_limits(client.raw) == (
        LimitSummary("a", None, 1, SECOND),
        LimitSummary("k", 2, 100, timedelta(minutes=1)),
    )

    await clear_limit(client.raw, "k")
    await clear_limit(client.raw, "k")
    assert await list_limits(client.raw) == (LimitSummary("a", None, 1, SECOND),)


@pytest.mark.parametrize(
    "options",
    [
        {"max_running": -1},
        {"max_starts": -1, "window": SECOND},
        {"max_starts": 1, "window": timedelta(0)},
        {"max_starts": 1},
        {"window": SECOND},
        {},
    ],
)
async def test_policies_that_cannot_be_are_refused_and_change_nothing(
    connect: Connect, options: dict[str, object]
) -> None:
    client = await connect()
    await set_limit(client.raw, "k", 4)

    async with client.transaction():
        with pytest.raises(AkadzeError):
            await set_limit(client.raw, "k", **options)  # type: ignore[arg-type]  # wrong on purpose
        assert await client.value("select 1") == 1

    assert await list_limits(client.raw) == (LimitSummary("k", 4, None, None),)


async def test_a_lowered_limit_lets_nothing_start_until_enough_runs_have_ended(line: Line, claimer: Claimer) -> None:
    await line.limit("k", 5)
    await line.add(10, key="k")
    begun = await claimer.claim(10)
    assert len(begun) == 5

    await set_limit(line.client.raw, "k", max_running=1)
    for row in begun:
        assert await claimer.claim(10) == []
        await claimer.finish([row])
    assert len(await claimer.claim(10)) == 1

    await set_limit(line.client.raw, "k", max_running=4)
    assert len(await claimer.claim(10)) == 3


async def test_a_cleared_key_has_no_limit_and_counts_from_zero_when_it_is_set_again(
    line: Line, claimer: Claimer
) -> None:
    await line.limit("k", max_starts=2, window=3600)
    await line.add(20, key="k")
    assert len(await claimer.claim(5)) == 2
    assert await claimer.claim(5) == []

    await clear_limit(line.client.raw, "k")
    assert await line.starts("k") == 0
    assert len(await claimer.claim(5)) == 5

    await set_limit(line.client.raw, "k", max_starts=2, window=timedelta(hours=1))
    assert len(await claimer.claim(5)) == 2
    assert await claimer.claim(5) == []


async def test_runs_from_before_the_limit_count_for_max_running_and_not_for_max_starts(
    line: Line, claimer: Claimer
) -> None:
    await line.add(3, key="k", state="running")
    await line.add(10, key="k")

    await set_limit(line.client.raw, "k", max_running=4, max_starts=2, window=timedelta(hours=1))
    assert len(await claimer.claim(10)) == 1
    await set_limit(line.client.raw, "k", max_running=100)
    assert len(await claimer.claim(10)) == 1
    assert await claimer.claim(10) == []


async def test_a_shorter_window_holds_from_the_next_claim_on(line: Line, claimer: Claimer) -> None:
    await line.limit("k", max_starts=1, window=3600)
    await line.add(5, key="k")
    assert len(await claimer.claim(5)) == 1
    await line.age_starts("k", 10)
    assert await claimer.claim(5) == []

    await set_limit(line.client.raw, "k", max_starts=1, window=timedelta(seconds=5))
    assert len(await claimer.claim(5)) == 1
    assert await claimer.claim(5) == []


async def test_b110_finished_and_deleted_jobs_do_not_change_the_count_of_starts(line: Line, claimer: Claimer) -> None:
    await line.limit("r", max_starts=5, window=1000)
    await line.client.sql(
        "insert into akadze.jobs (task, limit_key, state, started_at, finished_at)"
        " select 'work', 'r', 'succeeded', now(), now() from generate_series(1, 2000)"
    )
    await line.add(4, key="r", queue="q1", task="other")
    await line.add(12, key="r", queue="q2")

    both = replace(claimer, tasks=("other", "work"))
    begun = await both.claim({"q1": 10, "q2": 10})
    assert len(begun) == 5
    await both.finish(begun)
    await line.client.sql("delete from akadze.jobs where state = 'succeeded'")

    # Another worker, of one of the queues only.
    assert await claimer.claim({"q2": 10}) == []
    await line.age_starts("r", 900)
    assert await claimer.claim({"q2": 10}) == []
    await line.age_starts("r", 200)
    begun = await claimer.claim({"q2": 10})
    assert len(begun) == 5

    await clear_limit(line.client.raw, "r")
    await set_limit(line.client.raw, "r", max_starts=5, window=timedelta(seconds=10))
    assert len(await both.claim({"q1": 10, "q2": 10})) == 5
    assert await both.claim({"q1": 10, "q2": 10}) == []
