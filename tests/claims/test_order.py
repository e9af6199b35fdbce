"""Contract, sections 5 and 9: which jobs a claim takes, and in which order: priority (highest first), run_at, id."""

from __future__ import annotations

import time
from typing import Any

import pytest

from akadze import set_limit
from akadze._claimed import ClaimedRun
from akadze._statement import statement
from tests.claims.claiming import CHOOSE_FAIR, CHOOSE_LIMITED, Claimer
from tests.claims.exchanges import MakeExchange, done
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids


@pytest.fixture(params=[None, CHOOSE_LIMITED, CHOOSE_FAIR], ids=["plain", "limited", "fair"])
async def claimer(request: pytest.FixtureRequest, connect: Connect) -> Claimer:
    """A worker that claims in each of the ways, one test after another."""
    return Claimer(await connect(), choose=request.param)


async def test_the_highest_priority_goes_first_then_the_earliest_run_at_then_the_lowest_id(
    line: Line, claimer: Claimer
) -> None:
    late_low, low = await line.add_one(priority=-1, after=-5), await line.add_one(priority=-1, after=-9)
    second, third = await line.add(2, after=-5)
    first = await line.add_one(after=-7)
    lowest = await line.add_one(priority=-(2**15), after=-99)
    highest = await line.add_one(priority=2**15 - 1, after=-1)

    expected = [highest, first, second, third, low, late_low, lowest]
    assert ids(await claimer.claim(2)) == expected[:2]
    assert ids(await claimer.claim(3)) == expected[2:5]
    assert ids(await claimer.claim(10)) == expected[5:]
    assert await claimer.claim(10) == []


async def test_no_more_jobs_are_claimed_than_there_are_slots(line: Line, claimer: Claimer) -> None:
    await line.add(20)

    assert len(await claimer.claim(3)) == 3
    assert len(await line.running()) == 3


async def test_each_queue_has_slots_of_its_own(line: Line, claimer: Claimer) -> None:
    a = await line.add(5, queue="a", priority=5)
    b = await line.add(5, queue="b")
    await line.add(5, queue="c", priority=9)

    rows = await claimer.claim({"a": 2, "b": 3})

    assert sorted(ids(rows)) == sorted([*a[:2], *b[:3]])
    assert ids(rows)[:2] == a[:2]


async def test_a_full_queue_does_not_hold_up_another(line: Line, claimer: Claimer) -> None:
    await line.add(50, queue="a", priority=9)
    b = await line.add(2, queue="b")

    assert ids(await claimer.claim({"b": 5})) == b


async def test_a_job_planned_for_later_hides_nothing_behind_it(line: Line, claimer: Claimer) -> None:
    later = await line.add(300, priority=9, after=3600)
    ready = await line.add(3)

    assert ids(await claimer.claim(10)) == ready
    assert await line.state(later[0]) == "queued"


async def test_a_paused_queue_gives_nothing_and_the_others_go_on(line: Line, claimer: Claimer) -> None:
    paused = await line.add(3, queue="a")
    open_jobs = await line.add(3, queue="b")
    await line.client.sql("insert into akadze.queue_pauses (queue) values ('a')")

    assert ids(await claimer.claim({"a": 5, "b": 5})) == open_jobs

    await line.client.sql("delete from akadze.queue_pauses")
    assert ids(await claimer.claim({"a": 5, "b": 5})) == paused


@pytest.mark.parametrize("key", [None, "k"])
async def test_jobs_of_unknown_tasks_stay_queued_and_block_nobody(
    line: Line, claimer: Claimer, key: str | None
) -> None:
    unknown = await line.add(500, task="elsewhere", priority=3, key=key)
    same_level = await line.add(500, task="elsewhere", after=-60, key=key)
    known = await line.add(5)

    assert ids(await claimer.claim(10)) == known
    assert await line.states() == {"queued": len(unknown) + len(same_level), "running": 5}


async def test_expired_and_cancelled_jobs_are_not_started(line: Line, claimer: Claimer) -> None:
    await line.add(300, after=-9, expires_after=-1)
    await line.add(300, after=-9, cancel_after=-1)
    await line.add(3, after=-9, expires_after=3600, cancel_after=-1)
    good = await line.add(2, expires_after=3600)

    assert ids(await claimer.claim(10)) == good


async def test_keys_without_a_limits_row_have_no_limit(line: Line, claimer: Claimer) -> None:
    await line.limit("other", 0)
    jobs = await line.add(20, key="k")

    claimed = await claimer.claim(30)

    assert ids(claimed) == jobs if claimer.choose is not CHOOSE_FAIR else set(ids(claimed)) == set(jobs)
    assert await line.starts("k") == 0


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed while empty"])
async def test_a_claim_reads_little_of_a_long_line(line: Line, claimer: Claimer, analysed: bool) -> None:
    """Whatever the planner takes the table for."""
    await line.client.sql("alter table akadze.jobs set (autovacuum_enabled = off)")
    if analysed:
        await line.client.sql("analyze akadze.jobs")
    await line.limit("full", 0)
    await claimer.client.run(statement("session", "tune_session"), local=False)
    # As a worker's statements are: their plans are kept from when the line was empty.
    claimer.client.raw.prepare_threshold = 0
    await claimer.claim(10)
    await line.add(5_000, key="full", after=-60)
    await line.client.sql(
        "insert into akadze.jobs (task, limit_key, priority, run_at)"
        " select 'work', 'k' || n % 20, n % 3, now() - interval '1 second' * (n % 7) from generate_series(1, 15000) n"
    )
    async with claimer.client.transaction():
        if claimer.choose is None:
            claimed = await claimer.claim_plain(10)
        else:
            await claimer.choose_jobs(10)
            claimed = await claimer.take_jobs(10)
        read = await claimer.client.value(
            "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
            " where relid = 'akadze.jobs'::regclass"
        )
    assert len(claimed) == 10
    assert 0 < read < 2_000


BACKLOG = """
insert into akadze.jobs (task, limit_key, priority, run_at)
select 'work', 'tenant ' || n % 50, n % 3, now() - interval '1 second' * (n % 1000) from generate_series(1, {}) n
"""
# As the next jobs would be found by somebody who has to look at all of them.
NEXT_OF_ALL = """
select job.id from akadze.jobs job where job.state || '' = 'queued' order by job.priority + 0 desc, job.run_at, job.id
limit 10
"""


@pytest.mark.heavy
async def test_a_claim_on_a_backlog_takes_a_few_milliseconds(line: Line, claimer: Claimer, full: bool) -> None:
    """In both orders. What a look at the whole backlog takes tells how fast the machine is: 25 to 50 ms here."""
    await line.client.sql(BACKLOG.format(100_000 if full else 10_000))
    await line.client.sql("analyze akadze.jobs")
    await claimer.client.run(statement("session", "tune_session"), local=False)
    claimer.client.raw.prepare_threshold = 0
    claims: list[float] = []
    looks: list[float] = []
    for _ in range(10):
        began = time.monotonic()
        found = await line.client.sql(NEXT_OF_ALL)
        looks.append(time.monotonic() - began)
        began = time.monotonic()
        claimed = await claimer.claim(10)
        claims.append(time.monotonic() - began)
        if claimer.choose is not CHOOSE_FAIR:
            assert ids(claimed) == [row["id"] for row in found]
        assert len(claimed) == 10
    if full:  # a short backlog is looked at in no time
        assert min(claims) < min(looks) / 2


async def test_a_claimed_row_says_everything_about_the_run(line: Line, claimer: Claimer) -> None:
    job_id = await line.add_one(key="k", unique_key="u", priority=4, run_count=2, attempt=1, max_attempts=7)

    row = (await claimer.claim(1))[0]

    job = await line.job(job_id)
    assert (job["state"], job["worker_id"], job["run_count"], job["attempt"]) == ("running", claimer.worker, 3, 1)
    assert job["started_at"] == row["started_at"] is not None
    shared = set(row) - {"args", "meta", "errors"}
    assert {name: row[name] for name in shared} == {name: job[name] for name in shared}
    assert (row["args"], row["meta"], row["errors"]) == ("{}", "{}", "[]")


async def test_an_exchange_claims_in_order_and_gives_rows_that_runs_are_made_of(
    line: Line, make_exchange: MakeExchange, app: Any
) -> None:
    exchange = await make_exchange()
    low = await line.add(3)
    high = await line.add_one(priority=1, key="k", max_attempts=9)

    answer = await exchange.exchange([], {"default": 3})

    assert row_ids(answer.rows) == [high, *low[:2]]
    run = ClaimedRun(app, exchange._worker_id, answer.rows[0])
    assert (run.id, run.task.name, run.number, run.limit_key, run.max_attempts) == (high, "work", 1, "k", 9)


async def test_an_exchange_writes_outcomes_and_claims_what_they_put_back_in_one_go(
    line: Line, make_exchange: MakeExchange
) -> None:
    exchange = await make_exchange()
    first, second = await line.add(2)
    begun = (await exchange.exchange([], {"default": 2})).rows

    answer = await exchange.exchange([done(begun[0]), done(begun[1], "queued", delay=0)], {"default": 2})

    assert answer.written == {(first, 1), (second, 1)}
    assert [(row[0], row[6]) for row in answer.rows] == [(second, 2)]
    assert await line.states() == {"succeeded": 1, "running": 1}


async def test_an_urgent_job_is_found_though_the_line_was_known(line: Line, make_exchange: MakeExchange) -> None:
    """What an exchange remembers of the line spares reading, and hides no new level."""
    exchange = await make_exchange()
    await line.add(50, priority=5)
    assert len((await exchange.exchange([], {"default": 5})).rows) == 5
    assert exchange._line

    highest = await line.add_one(priority=9)
    between = await line.add_one(priority=5, after=-60)

    assert (await exchange.exchange([], {"default": 1})).rows[0][0] == highest
    await exchange.survey()  # the full look, once a second
    assert (await exchange.exchange([], {"default": 1})).rows[0][0] == between


async def test_a_job_that_commits_late_is_found_by_the_next_full_look(
    line: Line, make_exchange: MakeExchange, connect: Connect
) -> None:
    exchange = await make_exchange()
    slow = Line(await connect())
    async with slow.client.transaction():
        late = await slow.add_one()
        await line.add(50)
        assert len((await exchange.exchange([], {"default": 10})).rows) == 10

    await exchange.survey()
    assert (await exchange.exchange([], {"default": 1})).rows[0][0] == late


async def test_the_survey_tells_which_claim_is_needed(
    line: Line, make_exchange: MakeExchange, connect: Connect
) -> None:
    exchange = await make_exchange(queues=("default", "other"))
    survey = await exchange.survey()
    assert (survey.limited, survey.due, survey.doomed, survey.unknown, survey.next_in) == (
        False,
        False,
        False,
        False,
        None,
    )

    await line.add(after=30)
    survey = await exchange.survey()
    assert not survey.due
    assert 20 < survey.next_in <= 30

    await line.add(queue="elsewhere")
    assert not (await exchange.survey()).due

    await line.add(queue="other", task="elsewhere")
    survey = await exchange.survey()
    assert (survey.due, survey.unknown) == (True, True)

    await line.add(cancel_after=0)
    assert (await exchange.survey()).doomed

    await set_limit((await connect()).raw, "k", 1)
    assert (await exchange.survey()).limited
