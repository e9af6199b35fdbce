"""Contract, section 7: a rescue that meets a finish, complete_tx, hand-back or another rescue: one moves the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from akadze import Akadze
from akadze._async import transitions
from akadze._claimed import ClaimedRun
from akadze._connections import async_caller
from akadze._statement import statement
from akadze._verdict import HAND_BACK
from akadze._worker.exchange import Exchange
from akadze.context import Context, SyncContext
from akadze.errors import RunLost
from tests.claims.claiming import FINISH_RUNS, Claimer, outcomes
from tests.claims.clients import Client, Row, Watcher, variant
from tests.claims.exchanges import MakeExchange, done
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids

_LOCK_LOST_JOBS = statement("rescue", "lock_lost_jobs")
_OWNED_RUNS = statement("finish", "owned_runs")


async def rescue(client: Client) -> list[int]:
    """Take lost jobs back in the client's open transaction."""
    return sorted(row["id"] for row in await transitions.rescue(async_caller(client.raw), []))


@pytest.fixture
async def rescuer(connect: Connect) -> Client:
    return await connect()


@pytest.fixture
async def lost(line: Line, connect: Connect) -> Claimer:
    """A worker whose heartbeat is long over, and which still works."""
    claimer = Claimer(await connect())
    await line.register(claimer.worker, ttl=10, silent_for=11)
    return claimer


@pytest.mark.parametrize("state", ["succeeded", "failed", "queued", "cancelled"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_finish_that_comes_first_wins_if_it_commits(
    line: Line, lost: Claimer, rescuer: Client, state: str, end: str
) -> None:
    job_id = await line.add_one()
    begun = await lost.claim(1)

    await lost.client.begin()
    await lost.finish(begun, state)
    async with rescuer.transaction():
        assert await rescue(rescuer) == []
    await lost.client.raw.execute(end)

    async with rescuer.transaction():
        assert await rescue(rescuer) == ([] if end == "commit" else [job_id])
    job = await line.job(job_id)
    assert (job["state"], job["attempt"]) == ((state, 0) if end == "commit" else ("queued", 1))


async def test_if_a_rescue_waited_for_a_finish_it_would_hold_up_all_the_others(
    line: Line, lost: Claimer, rescuer: Client, watcher: Watcher
) -> None:
    await line.add()
    begun = await lost.claim(1)
    patient = variant(_LOCK_LOST_JOBS, ("for update of j skip locked", "for update of j"))

    async with lost.client.transaction():
        await lost.finish(begun)
        waiting = await watcher.start_and_see_waiting(rescuer.run(patient, apart=[], rescuer=None))

    assert await waiting == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_rescue_that_comes_first_wins_if_it_commits(
    line: Line, lost: Claimer, rescuer: Client, end: str
) -> None:
    job_id = await line.add_one()
    begun = await lost.claim(1)
    run = {"ids": [job_id], "runs": [1], "worker": str(lost.worker)}

    await rescuer.begin()
    assert await rescue(rescuer) == [job_id]
    # The finish does not wait. Until the rescue commits the worker is told to try again, and then that the job is lost.
    assert await lost.finish(begun) == []
    assert ids(await lost.client.run(_OWNED_RUNS, **run)) == [job_id]
    await rescuer.raw.execute(end)

    assert ids(await lost.client.run(_OWNED_RUNS, **run)) == ([] if end == "commit" else [job_id])
    assert len(await lost.finish(begun)) == (0 if end == "commit" else 1)
    job = await line.job(job_id)
    assert (job["state"], job["attempt"]) == (("queued", 1) if end == "commit" else ("succeeded", 0))


async def test_an_outcome_that_meets_a_rescue_does_not_hold_up_the_others_of_its_exchange(
    line: Line, make_exchange: MakeExchange, rescuer: Client
) -> None:
    first, second = await line.add(2)
    exchange = await make_exchange()
    begun = (await exchange.exchange([], {"default": 2})).rows

    async with rescuer.transaction():
        await rescuer.sql("select from akadze.jobs where id = %s for update", [first])
        answer = await exchange.exchange([done(row) for row in begun], {"default": 2})
        assert answer.written == {(second, 1)}
        assert await exchange.owned([(first, 1)]) == {(first, 1)}

    assert (await exchange.exchange([done(begun[0])], {})).written == {(first, 1)}


async def test_a_finish_that_waited_for_locked_rows_would_hold_up_the_others(
    line: Line, lost: Claimer, rescuer: Client, watcher: Watcher
) -> None:
    await line.add(2)
    begun = await lost.claim(2)
    patient = variant(FINISH_RUNS, ("for update of j skip locked", "for update of j"))

    async with rescuer.transaction():
        await rescuer.sql("select from akadze.jobs where id = %s for update", [begun[0]["id"]])
        waiting = await watcher.start_and_see_waiting(
            lost.client.run(patient, outcomes=outcomes(begun, "succeeded"), worker=str(lost.worker))
        )

    assert len(await waiting) == 2


@pytest.mark.parametrize("first", ["hand-back", "rescue"])
async def test_a_job_that_is_handed_back_and_rescued_spends_at_most_one_attempt(
    line: Line, lost: Claimer, rescuer: Client, first: str
) -> None:
    job_id = await line.add_one()
    begun = await lost.claim(1)
    outcome = f"[{HAND_BACK.outcome(begun[0]['id'], begun[0]['run_count'])}]"

    async def hand_back() -> list[Row]:
        return await lost.client.run(FINISH_RUNS, outcomes=outcome, worker=str(lost.worker))

    if first == "hand-back":
        async with lost.client.transaction():
            assert ids(await hand_back()) == [job_id]
            async with rescuer.transaction():
                assert await rescue(rescuer) == []
    else:
        async with rescuer.transaction():
            assert await rescue(rescuer) == [job_id]
            assert await hand_back() == []
        assert await hand_back() == []
    async with rescuer.transaction():
        assert await rescue(rescuer) == []

    job = await line.job(job_id)
    assert (job["state"], job["attempt"], job["worker_id"]) == ("queued", 0 if first == "hand-back" else 1, None)


async def test_two_rescues_share_the_lost_jobs(line: Line, lost: Claimer, rescuer: Client, connect: Connect) -> None:
    other = await connect()
    jobs = await line.add(150)
    await lost.claim(150)

    async with rescuer.transaction():
        mine = await rescue(rescuer)
        async with other.transaction():
            others = await rescue(other)

    assert (len(mine), len(others)) == (100, 50)
    assert sorted([*mine, *others]) == jobs
    assert await line.client.value("select max(attempt) from akadze.jobs") == 1


async def test_a_worker_that_beats_again_in_time_keeps_its_jobs(line: Line, lost: Claimer, rescuer: Client) -> None:
    """The rescuer's snapshot decides: a beat that has not committed does not count, one that has does."""
    job_id = await line.add_one()
    await lost.claim(1)

    async with lost.client.transaction():
        await lost.client.sql("update akadze.workers set heartbeat_at = now()")
    async with rescuer.transaction():
        assert await rescue(rescuer) == []
    assert await line.state(job_id) == "running"


Meanwhile = Callable[[], Coroutine[Any, Any, None]]
Complete = Callable[[Meanwhile], Coroutine[Any, Any, None]]


@pytest.fixture(params=["async", "blocking"])
async def complete(request: pytest.FixtureRequest, app: Akadze, line: Line) -> AsyncIterator[tuple[int, Complete]]:
    """A run of a lost worker, and its complete_tx: it writes a row, then calls the function, then ends the block."""
    await line.client.sql("create table public.written (number integer)")

    async def body() -> None: ...

    app.register(body, name="work")
    worker_id = uuid4()
    await line.register(worker_id, ttl=10, silent_for=11)
    job_id = await line.add_one()
    exchange = Exchange(app, worker_id, ["default"], fair=False)
    run = ClaimedRun(app, worker_id, (await exchange.exchange([], {"default": 1})).rows[0])

    async def complete_async(meanwhile: Meanwhile) -> None:
        async with Context(run).complete_tx() as connection:
            await connection.exec_driver_sql("insert into public.written values (1)")
            await meanwhile()

    async def complete_blocking(meanwhile: Meanwhile) -> None:
        loop = asyncio.get_running_loop()

        def block() -> None:
            with SyncContext(run).complete_tx() as connection:
                connection.exec_driver_sql("insert into public.written values (1)")
                asyncio.run_coroutine_threadsafe(meanwhile(), loop).result(20)

        await asyncio.to_thread(block)

    yield job_id, complete_async if request.param == "async" else complete_blocking
    await exchange.give_up()


async def nothing() -> None: ...


async def written(line: Line) -> int:
    found: int = await line.client.value("select count(*) from public.written")
    return found


async def test_a_complete_tx_whose_job_was_rescued_meanwhile_is_rolled_back(
    line: Line, complete: tuple[int, Complete], rescuer: Client
) -> None:
    job_id, run_block = complete

    async def rescued() -> None:
        async with rescuer.transaction():
            assert await rescue(rescuer) == [job_id]

    with pytest.raises(RunLost):
        await run_block(rescued)

    assert await written(line) == 0
    assert await line.state(job_id) == "queued"


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_complete_tx_waits_for_a_rescue_that_is_under_way(
    line: Line, complete: tuple[int, Complete], rescuer: Client, watcher: Watcher, end: str
) -> None:
    job_id, run_block = complete
    await rescuer.begin()
    assert await rescue(rescuer) == [job_id]
    waiting = await watcher.start_and_see_waiting(run_block(nothing))
    await rescuer.raw.execute(end)

    if end == "commit":
        with pytest.raises(RunLost):
            await waiting
        assert (await written(line), await line.state(job_id)) == (0, "queued")
    else:
        await waiting
        assert (await written(line), await line.state(job_id)) == (1, "succeeded")


async def test_a_rescue_leaves_a_job_alone_that_a_complete_tx_is_about_to_commit(
    line: Line, complete: tuple[int, Complete], rescuer: Client, app: Akadze
) -> None:
    job_id, run_block = complete
    found: list[list[int]] = []

    async def look(*_: Any) -> None:
        async with rescuer.transaction():
            found.append(await rescue(rescuer))

    loop = asyncio.get_running_loop()

    def hook(connection: Any, job: Any, from_state: str, to_state: str) -> Any:
        """Runs between the statement that finishes the job and the commit."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(look(), loop).result(20)
        return look()

    app.hooks.on_transition.append(hook)
    await run_block(nothing)

    assert found == [[]]
    assert (await written(line), await line.state(job_id)) == (1, "succeeded")
