"""Contract, section 9: limits hold while claims, set_limit and clear_limit wait for one another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from akadze import clear_limit, request_cancel, set_limit
from akadze._statement import Statement
from tests.claims.claiming import CHOOSE_FAIR, CHOOSE_LIMITED, FINISH_RUNS, TAKE_CHOSEN, Claimer, outcomes
from tests.claims.clients import Row, Watcher, variant
from tests.claims.exchanges import MakeExchange, done
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids

#: Counts in the statement that waits for the locks, with a snapshot from before it waited.
_COUNT_EARLY = """select set_config('akadze.counted', cast((select jsonb_object_agg(m.key, least(
  m.max_running - (select count(*) from akadze.jobs r where r.state = 'running' and r.limit_key = m.key),
  m.max_starts - (
    select count(*) from akadze.limit_starts s where s.key = m.key and s.started_at > clock_timestamp() - m."window")))
  from akadze.limits m) as text), true), set_config('akadze.chosen'"""
_COUNT = TAKE_CHOSEN.sql[TAKE_CHOSEN.sql.index("least(") : TAKE_CHOSEN.sql.index("    else 0 end as room")]


def with_a_stale_count(claimer: Claimer) -> Claimer:
    assert claimer.choose is not None
    return replace(
        claimer,
        choose=variant(claimer.choose, ("select set_config('akadze.chosen'", _COUNT_EARLY)),
        take=variant(
            TAKE_CHOSEN, (_COUNT, "cast(cast(current_setting('akadze.counted') as jsonb) ->> m.key as bigint)\n")
        ),
    )


@pytest.fixture(params=[CHOOSE_LIMITED, CHOOSE_FAIR], ids=["limited", "fair"])
def choose(request: pytest.FixtureRequest) -> Statement:
    found: Statement = request.param
    return found


@pytest.fixture
async def first(choose: Statement, connect: Connect) -> Claimer:
    return Claimer(await connect(), choose=choose)


@pytest.fixture
async def second(choose: Statement, connect: Connect) -> Claimer:
    return Claimer(await connect(), choose=choose)


async def claim_one_after_the_other(
    line: Line, first: Claimer, second: Claimer, watcher: Watcher
) -> tuple[list[Row], list[Row]]:
    """The second chooses while the first has taken jobs and not committed, so it waits for the lock on the limit.

    They serve different queues, so that it is only the limit that keeps the second from starting what it has chosen.
    """
    await line.add(5, key="k", queue="a")
    await line.add(5, key="k", queue="b")
    await first.client.begin()
    await first.choose_jobs({"a": 2})
    mine = await first.take_jobs({"a": 2})
    claim = await watcher.start_and_see_waiting(second.claim({"b": 2}))
    await first.client.commit()
    return mine, await claim


async def test_max_running_holds_when_a_claim_waits_for_another(
    line: Line, first: Claimer, second: Claimer, watcher: Watcher
) -> None:
    await line.limit("k", 3)

    mine, others = await claim_one_after_the_other(line, first, second, watcher)

    assert (len(mine), len(others)) == (2, 1)
    assert len(await line.running("k")) == 3


async def test_max_running_would_not_hold_with_a_count_from_before_the_wait(
    line: Line, first: Claimer, second: Claimer, watcher: Watcher
) -> None:
    await line.limit("k", 3)

    await claim_one_after_the_other(line, with_a_stale_count(first), with_a_stale_count(second), watcher)

    assert len(await line.running("k")) == 4


async def test_max_starts_holds_when_a_claim_waits_for_another(
    line: Line, first: Claimer, second: Claimer, watcher: Watcher
) -> None:
    await line.limit("k", max_starts=3, window=60)

    mine, others = await claim_one_after_the_other(line, first, second, watcher)

    assert (len(mine), len(others)) == (2, 1)
    assert await line.starts("k") == 3


async def test_max_starts_would_not_hold_with_a_count_from_before_the_wait(
    line: Line, first: Claimer, second: Claimer, watcher: Watcher
) -> None:
    await line.limit("k", max_starts=3, window=60)

    await claim_one_after_the_other(line, with_a_stale_count(first), with_a_stale_count(second), watcher)

    assert await line.starts("k") == 4


@pytest.mark.parametrize("fair", [False, True], ids=["limited", "fair"])
async def test_both_limits_hold_for_an_exchange_that_waits(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher, fair: bool
) -> None:
    await line.limit("r", 3)
    await line.limit("s", max_starts=3, window=60)
    jobs = [job for _ in range(5) for job in (await line.add_one(key="r"), await line.add_one(key="s"))]
    free = await line.add_one(priority=-1)
    first = Claimer(await connect(), choose=CHOOSE_LIMITED)
    exchange = await make_exchange(fair=fair)

    await first.client.begin()
    await first.choose_jobs(4)
    assert ids(await first.take_jobs(4)) == jobs[:4]
    waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 10}))
    await first.client.commit()

    assert row_ids((await waiting).rows) == [*jobs[4:6], free]
    assert (len(await line.running("r")), await line.starts("s")) == (3, 3)


async def test_a_claim_that_is_rolled_back_leaves_its_places_to_the_one_that_waits(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher
) -> None:
    await line.limit("k", 2, max_starts=2, window=60)
    await line.add(5, key="k")
    first = Claimer(await connect(), choose=CHOOSE_LIMITED)
    exchange = await make_exchange()

    await first.client.begin()
    await first.choose_jobs(2)
    taken = ids(await first.take_jobs(2))
    waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 5}))
    await first.client.rollback()

    assert row_ids((await waiting).rows) == taken
    assert await line.starts("k") == 2


async def test_a_place_that_the_other_worker_frees_and_takes_again_is_not_given_twice(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher
) -> None:
    await line.limit("k", 2)
    jobs = await line.add(5, key="k")
    first = Claimer(await connect(), choose=CHOOSE_LIMITED)
    begun = await first.claim(1)
    exchange = await make_exchange()

    await first.client.begin()
    await first.choose_jobs(2, finishing=ids(begun))
    await first.finish(begun)
    again = await first.take_jobs(2)
    waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 5}))
    await first.client.commit()

    assert (ids(begun), ids(again)) == (jobs[:1], jobs[1:3])
    assert (await waiting).rows == []


async def claim_around_a_new_limit(line: Line, first: Claimer, second: Claimer) -> list[list[int]]:
    """Two workers of different queues have both chosen when the key gets its limit; then both take."""
    await line.add(2, key="k", queue="a")
    await line.add(2, key="k", queue="b")
    await line.add(1, key="free", queue="a", priority=-1)
    await first.client.begin()
    await second.client.begin()
    await first.choose_jobs({"a": 3})
    await second.choose_jobs({"b": 3})
    await set_limit(line.client.raw, "k", 1)
    taken = [ids(await first.take_jobs({"a": 3})), ids(await second.take_jobs({"b": 3}))]
    await first.client.commit()
    await second.client.commit()
    return taken


async def test_a_key_that_gets_its_limit_during_a_claim_starts_nothing_in_it(
    line: Line, first: Claimer, second: Claimer
) -> None:
    taken = await claim_around_a_new_limit(line, first, second)

    assert [len(jobs) for jobs in taken] == [1, 0], "only the job of the other key"
    assert await line.running("k") == []
    assert len(await first.claim({"a": 3, "b": 3})) == 1


async def test_a_claim_that_trusted_a_limit_it_has_not_locked_would_exceed_it(
    line: Line, first: Claimer, second: Claimer
) -> None:
    trusting = variant(TAKE_CHOSEN, ("m.key = any (cast(current_setting('akadze.locked', true) as text[]))", "true"))

    await claim_around_a_new_limit(line, replace(first, take=trusting), replace(second, take=trusting))

    assert len(await line.running("k")) == 2


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
async def test_a_claim_waits_for_an_open_set_limit_and_obeys_what_becomes_of_it(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher, outcome: str
) -> None:
    await line.limit("k", 4)
    await line.add(10, key="k")
    caller = await connect()
    exchange = await make_exchange()

    await caller.begin()
    await set_limit(caller.raw, "k", 1)
    waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 10}))
    await caller.raw.execute(outcome)

    assert len((await waiting).rows) == (1 if outcome == "commit" else 4)


async def test_a_key_without_limits_does_not_wait_for_an_open_set_limit(
    line: Line, connect: Connect, make_exchange: MakeExchange
) -> None:
    await line.limit("k", 4)
    jobs = await line.add(3, key="other")
    caller = await connect()
    exchange = await make_exchange()

    async with caller.transaction():
        await set_limit(caller.raw, "k", 1)
        await set_limit(caller.raw, "new", 1)
        assert row_ids((await exchange.exchange([], {"default": 10})).rows) == jobs


@pytest.mark.parametrize("held", ["a", "b"])
async def test_a_claim_locks_the_limits_of_its_keys_in_the_order_of_the_keys(
    line: Line, first: Claimer, connect: Connect, watcher: Watcher, held: str
) -> None:
    """Neither in that of the jobs nor in that of the rows."""
    for key in "cab":
        await line.limit(key, 1)
        await line.add(key=key)
    caller = await connect()

    async with caller.transaction():
        await caller.sql("select from akadze.limits where key = %s for update", [held])
        claim = await watcher.start_and_see_waiting(first.claim(3))
        free = await line.client.sql("select key from akadze.limits order by key for update skip locked")
    await claim

    assert [row["key"] for row in free] == (["b", "c"] if held == "a" else ["c"])


async def clear_between_choose_and_take(
    line: Line, claimer: Claimer, watcher: Watcher, clear: Statement | None
) -> None:
    await line.limit("k", max_starts=2, window=3600)
    await line.add(10, key="k")
    await claimer.client.begin()
    await claimer.choose_jobs(5)
    call = clear_limit(line.client.raw, "k") if clear is None else line.client.run(clear, key="k")
    clearing = await watcher.start_and_see_waiting(call)
    assert len(await claimer.take_jobs(5)) == 2
    await claimer.client.commit()
    await clearing


async def test_clear_limit_waits_for_a_claim_and_takes_its_start_marks_too(
    line: Line, first: Claimer, watcher: Watcher
) -> None:
    await clear_between_choose_and_take(line, first, watcher, None)
    assert await line.starts("k") == 0

    await set_limit(line.client.raw, "k", max_starts=2, window=timedelta(hours=1))
    assert len(await first.claim(5)) == 2


async def test_clearing_in_one_statement_would_leave_the_marks_of_the_claim_that_it_waited_for(
    line: Line, first: Claimer, watcher: Watcher
) -> None:
    at_once = Statement(
        "clear_at_once",
        "with gone as (delete from akadze.limits m where m.key = :key returning m.key)"
        " delete from akadze.limit_starts s using gone g where s.key = g.key",
    )

    await clear_between_choose_and_take(line, first, watcher, at_once)

    assert await line.starts("k") == 2


async def test_a_limit_that_is_cleared_and_set_again_while_a_claim_waits_is_not_exceeded(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher
) -> None:
    await line.limit("k", 5)
    await line.add(10, key="k")
    caller = await connect()
    exchange = await make_exchange()

    async with caller.transaction():
        await clear_limit(caller.raw, "k")
        await set_limit(caller.raw, "k", 1)
        waiting = await watcher.start_and_see_waiting(exchange.exchange([], {"default": 10}))

    assert len((await waiting).rows) <= 1
    await exchange.exchange([], {"default": 10})
    assert len(await line.running("k")) == 1


async def mark_after_a_wait(line: Line, claimer: Claimer, connect: Connect, watcher: Watcher) -> bool:
    """Claim a job with a wait for the limit's lock; tell whether its mark is from after the wait."""
    await line.limit("k", max_starts=1, window=3600)
    await line.add(key="k")
    caller = await connect()
    async with caller.transaction():
        await caller.sql("select from akadze.limits for update")
        claim = await watcher.start_and_see_waiting(claimer.claim(1))
        released = await caller.value("select clock_timestamp()")
    await claim
    return bool(await line.client.value("select started_at >= %s from akadze.limit_starts", [released]))


async def test_a_start_is_marked_with_the_time_after_the_wait_for_the_lock(
    line: Line, first: Claimer, connect: Connect, watcher: Watcher
) -> None:
    """Else the mark would leave the window early by the time spent waiting."""
    assert await mark_after_a_wait(line, first, connect, watcher)


async def test_the_time_at_which_the_transaction_began_would_be_too_early_for_a_mark(
    line: Line, first: Claimer, connect: Connect, watcher: Watcher
) -> None:
    early = replace(first, take=variant(TAKE_CHOSEN, ("clock_timestamp()", "now()")))
    assert not await mark_after_a_wait(line, early, connect, watcher)


@pytest.mark.parametrize("order", ["cancel first", "limit first"])
async def test_callers_that_change_a_limit_and_cancel_a_run_do_not_deadlock_with_its_worker(
    line: Line, connect: Connect, make_exchange: MakeExchange, watcher: Watcher, order: str
) -> None:
    await line.limit("k", 1)
    await line.add(2, key="k")
    caller = await connect()
    exchange = await make_exchange()
    begun = (await exchange.exchange([], {"default": 1})).rows
    job_id = begun[0][0]

    async with caller.transaction():
        if order == "cancel first":
            await request_cancel(caller.raw, job_id)
            answer = await exchange.exchange([done(begun[0])], {"default": 1})
            assert answer.written == set()
            await set_limit(caller.raw, "k", 3)
        else:
            await set_limit(caller.raw, "k", 3)
            waiting = await watcher.start_and_see_waiting(exchange.exchange([done(begun[0])], {"default": 1}))
            await request_cancel(caller.raw, job_id)
    if order == "limit first":
        answer = await waiting
        assert answer.written == {(job_id, 1)}
    assert await exchange.owned([(job_id, 1)]) == ({(job_id, 1)} if order == "cancel first" else set())


async def test_a_finish_that_waited_for_locked_rows_would_deadlock_with_such_a_caller(
    line: Line, first: Claimer, connect: Connect, watcher: Watcher
) -> None:
    patient = variant(FINISH_RUNS, ("for update of j skip locked", "for update of j"))
    await line.limit("k", 1)
    await line.add(2, key="k")
    begun = await first.claim(1)
    caller = await connect()

    await caller.begin()
    await request_cancel(caller.raw, begun[0]["id"])
    await first.client.begin()
    await first.choose_jobs(1, finishing=ids(begun))
    finish = await watcher.start_and_see_waiting(
        first.client.run(patient, outcomes=outcomes(begun, "succeeded"), worker=str(first.worker))
    )
    results = await asyncio.wait_for(
        asyncio.gather(set_limit(caller.raw, "k", 3), finish, return_exceptions=True), timeout=20
    )
    assert [type(result) for result in results].count(psycopg.errors.DeadlockDetected) == 1
