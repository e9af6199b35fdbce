"""Contract, section 6: cancel requests and expiry that meet a finish, a claim, or one another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from akadze import Akadze, request_cancel
from akadze._async import transitions
from akadze._connections import async_caller
from akadze.job import Job
from tests.claims.claiming import CHOOSE_LIMITED, CLAIM_PLAIN, Claimer
from tests.claims.clients import Client, Watcher, variant
from tests.claims.exchanges import MakeExchange, Way, done
from tests.claims.exchanges import ids as row_ids
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids
from tests.waiting import until
from tests.worker.serving import Serve, workers
from tests.worker.table import Table, enqueue, open_table


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[Table]:
    async with open_table(database_url) as table:
        yield table


@pytest.fixture
async def serve(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    async with workers(app, table) as serve:
        yield serve


@pytest.fixture
async def caller(connect: Connect) -> Client:
    return await connect()


async def sweep(client: Client) -> list[int]:
    """Cancel doomed jobs in the client's open transaction, as a worker does."""
    return ids(await transitions.cancel_doomed(async_caller(client.raw), [], ["default"]))


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_an_outcome_that_meets_an_open_cancel_request_waits_its_turn_and_obeys_it(
    line: Line, make_exchange: MakeExchange, caller: Client, end: str
) -> None:
    exchange = await make_exchange()
    for state in ("succeeded", "failed", "queued"):
        held, other = await line.add(2)
        begun = (await exchange.exchange([], {"default": 2})).rows
        assert row_ids(begun) == [held, other]
        sent = [done(row, state) for row in begun]

        await caller.begin()
        await request_cancel(caller.raw, held)
        answer = await exchange.exchange(sent, {})
        assert answer.written == {(other, 1)}, "the other one is not held up"
        assert await exchange.owned([(held, 1)]) == {(held, 1)}
        await caller.raw.execute(end)

        assert (await exchange.exchange(sent[:1], {})).written == {(held, 1)}
        expected = "cancelled" if end == "commit" and state != "succeeded" else state
        assert await line.state(held) == expected


async def test_a_cancel_request_that_waits_for_a_finish_changes_nothing(
    line: Line, caller: Client, connect: Connect, watcher: Watcher
) -> None:
    job_id = await line.add_one()
    claimer = Claimer(await connect())
    begun = await claimer.claim(1)

    await claimer.client.begin()
    await claimer.finish(begun, "failed")
    waiting = await watcher.start_and_see_waiting(request_cancel(caller.raw, job_id))
    await claimer.client.commit()
    await waiting

    job = await line.job(job_id)
    assert (job["state"], job["cancel_requested_at"]) == ("failed", None)


async def test_a_cancel_request_that_waits_for_a_retry_ends_the_queued_job(
    line: Line, caller: Client, connect: Connect, watcher: Watcher
) -> None:
    job_id = await line.add_one()
    claimer = Claimer(await connect())
    begun = await claimer.claim(1)

    await claimer.client.begin()
    await claimer.finish(begun, "queued", delay=0)
    waiting = await watcher.start_and_see_waiting(request_cancel(caller.raw, job_id))
    await claimer.client.commit()
    await waiting

    assert await claimer.claim(1) == []
    async with caller.transaction():
        assert await sweep(caller) == [job_id]
    assert await line.state(job_id) == "cancelled"


@pytest.mark.parametrize("choose", [None, CHOOSE_LIMITED], ids=["plain", "limited"])
async def test_a_cancel_request_that_waits_for_a_claim_marks_the_running_job(
    line: Line, caller: Client, connect: Connect, watcher: Watcher, choose: Any
) -> None:
    job_id = await line.add_one()
    claimer = Claimer(await connect(), choose=choose)

    await claimer.client.begin()
    if choose is None:
        begun = await claimer.claim_plain(1)
    else:
        await claimer.choose_jobs(1)
        begun = await claimer.take_jobs(1)
    waiting = await watcher.start_and_see_waiting(request_cancel(caller.raw, job_id))
    await claimer.client.commit()
    await waiting

    job = await line.job(job_id)
    assert job["state"] == "running"
    assert job["cancel_requested_at"] is not None
    await claimer.finish(begun, "failed")
    assert await line.state(job_id) == "cancelled"


async def test_an_open_cancel_request_keeps_its_job_from_being_claimed_or_swept(
    line: Line, caller: Client, connect: Connect, make_exchange: MakeExchange
) -> None:
    job_id = await line.add_one()
    sweeper = await connect()
    exchange = await make_exchange()

    await caller.begin()
    await request_cancel(caller.raw, job_id)
    assert (await exchange.exchange([], {"default": 5})).rows == []
    async with sweeper.transaction():
        assert await sweep(sweeper) == []
    await caller.commit()

    assert (await exchange.exchange([], {"default": 5})).rows == []
    async with sweeper.transaction():
        assert await sweep(sweeper) == [job_id]
    assert await line.state(job_id) == "cancelled"


@pytest.mark.parametrize("first", ["claim", "sweep"])
async def test_a_job_that_expires_is_either_claimed_or_cancelled(
    line: Line, connect: Connect, caller: Client, first: str
) -> None:
    job_id = await line.add_one(expires_after=3600)
    claimer = Claimer(await connect())

    if first == "claim":
        await claimer.client.begin()
        assert ids(await claimer.claim_plain(1)) == [job_id]
        async with caller.transaction():
            # As if the time had come in this very moment.
            assert await sweep(caller) == []
        await claimer.client.commit()
        await line.client.sql("update akadze.jobs set expires_at = now() where id = %s", [job_id])
        async with caller.transaction():
            assert await sweep(caller) == []
        assert await line.state(job_id) == "running"
    else:
        await line.client.sql("update akadze.jobs set expires_at = now() where id = %s", [job_id])
        async with caller.transaction():
            assert await sweep(caller) == [job_id]
            assert await claimer.claim(1) == []
        assert await claimer.claim(1) == []
        job = await line.job(job_id)
        assert (job["state"], job["expired"], job["run_count"]) == ("cancelled", True, 0)


async def test_two_sweeps_share_the_doomed_jobs(line: Line, caller: Client, connect: Connect) -> None:
    other = await connect()
    jobs = await line.add(600, expires_after=-1)

    async with caller.transaction():
        mine = await sweep(caller)
        async with other.transaction():
            others = await sweep(other)

    assert (len(mine), len(others)) == (500, 100)
    assert sorted([*mine, *others]) == jobs


@pytest.mark.parametrize("way", [Way.HOOKS], indirect=True)
@pytest.mark.parametrize("clock", ["statement_timestamp()", "now()"])
async def test_a_job_that_is_cancelled_while_hooks_run_is_not_started_in_that_exchange(
    line: Line,
    make_exchange: MakeExchange,
    app: Akadze,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    clock: str,
) -> None:
    """After a hook has raised, hooks of outcomes run before the claim in its transaction; now() is when that began."""
    claim = variant(CLAIM_PLAIN, ("statement_timestamp()", clock))
    monkeypatch.setattr("akadze._worker.exchange._CLAIM_PLAIN", claim)
    refused, last = await line.add(2)
    exchange = await make_exchange()
    begun = (await exchange.exchange([], {"default": 2})).rows
    waiting = await line.add_one()
    calls: list[int] = []

    def hook(connection: Any, job: Job, from_state: str, to_state: str) -> None:
        calls.append(job.id)
        if job.id == refused:
            raise RuntimeError("refused")
        if job.id == last:
            with psycopg.connect(database_url, autocommit=True) as other:
                cancel = "update akadze.jobs set cancel_requested_at = clock_timestamp() where id = %s"
                other.execute(cancel, [waiting])

    app.hooks.on_transition.append(hook)
    answer = await exchange.exchange([done(row) for row in begun], {"default": 2})

    assert (answer.written, answer.refused) == ({(last, 1)}, [(refused, 1)])
    assert row_ids(answer.rows) == ([] if clock == "statement_timestamp()" else [waiting])


async def test_a_worker_sends_an_outcome_again_whose_job_a_caller_holds_and_holds_up_nothing_else(
    app: Akadze, table: Table, serve: Serve, caller: Client, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    @app.task("held", max_attempts=1)
    async def held() -> None:
        await release.wait()
        raise ValueError

    @app.task("other")
    async def other() -> None: ...

    caplog.set_level(logging.WARNING, logger="akadze")
    held_id = await enqueue(held)
    await serve(slots=2)
    await table.in_state(held_id, "running")

    async with caller.transaction():
        await request_cancel(caller.raw, held_id)
        release.set()
        # Its slot is free, and others run in it, while its outcome waits.
        others = [await enqueue(other) for _ in range(6)]
        assert (await table.ended(*others))["state"] == "succeeded"
        assert (await table.job(held_id))["state"] == "running"

    job = await table.ended(held_id)
    assert (job["state"], job["run_count"], job["error_names"]) == ("cancelled", 1, ["ValueError"])
    assert [record.getMessage() for record in caplog.records if record.name == "akadze.worker"] == []


async def test_a_worker_sees_to_a_cancel_request_though_its_queue_is_paused(
    app: Akadze, table: Table, serve: Serve, line: Line
) -> None:
    @app.task("work")
    async def work() -> None: ...

    await line.client.sql("insert into akadze.queue_pauses (queue) values ('default')")
    job_id = await enqueue(work)
    await serve()
    await request_cancel(line.client.raw, job_id)

    assert (await table.ended(job_id))["state"] == "cancelled"


async def test_an_exchange_that_claims_beside_a_sweep_starts_none_of_its_jobs(
    line: Line, caller: Client, make_exchange: MakeExchange
) -> None:
    doomed = await line.add(3, expires_after=-1)
    good = await line.add(2)
    exchange = await make_exchange()

    async with caller.transaction():
        assert await sweep(caller) == doomed
        assert row_ids((await exchange.exchange([], {"default": 9})).rows) == good
    assert await until(lambda: line.states()) == {"cancelled": 3, "running": 2}
