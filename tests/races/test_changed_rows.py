"""Contract, sections 4 and 9: rows changed between what a statement sees and its lock: each is left, none is lost."""

from __future__ import annotations

import pytest

from tests.claims.claiming import CHOOSE_FAIR, CLAIM_PLAIN, FINISH_RUNS, TAKE_CHOSEN, Claimer, outcomes
from tests.claims.clients import Client, Watcher, variant
from tests.claims.fixtures import Connect
from tests.claims.line import Line, ids

#: A place in a statement, after it has begun to look, where it waits for the test.
_GATE = "(select pg_advisory_xact_lock_shared(7)) is not null and "
_OPEN, _CLOSE = "select pg_advisory_unlock(7)", "select pg_advisory_lock(7)"

_CHANGE = "update akadze.jobs set meta = '{\"changed\": true}' where id = %s"
_HOLD = "select from akadze.jobs where id = %s for update"


@pytest.fixture
async def gate(connect: Connect) -> Client:
    gate = await connect()
    await gate.sql(_CLOSE)
    return gate


@pytest.mark.parametrize("change", [_CHANGE, _HOLD], ids=["changed", "only held"])
@pytest.mark.parametrize("choose", [None, CHOOSE_FAIR], ids=["plain", "chosen"])
async def test_a_job_that_is_changed_under_a_claim_is_claimed_whole_or_left(
    line: Line, connect: Connect, watcher: Watcher, gate: Client, choose: object, change: str
) -> None:
    task = "j.task = any (cast(:tasks as text[]))\n        and (least"
    claimer = Claimer(
        await connect(),
        choose=choose,  # type: ignore[arg-type]  # one of the statements
        plain=variant(CLAIM_PLAIN, (task, _GATE + task)),
        take=variant(TAKE_CHOSEN, ("where j.id = o.id and ", "where j.id = o.id and " + _GATE)),
    )
    jobs = await line.add(3, key="k")

    claim = await watcher.start_and_see_waiting(claimer.claim(3))
    await line.client.sql(change, [jobs[1]])
    await gate.sql(_OPEN)
    claimed = ids(await claim)

    assert claimed == ([jobs[0], jobs[2]] if change == _CHANGE else jobs)
    assert await line.running() == claimed
    await claimer.claim(3)
    assert await line.running() == jobs


@pytest.mark.parametrize("change", [_CHANGE, _HOLD], ids=["changed", "only held"])
async def test_a_run_whose_job_is_changed_under_its_outcome_is_finished_or_left(
    line: Line, connect: Connect, watcher: Watcher, gate: Client, change: str
) -> None:
    claimer = Claimer(await connect())
    jobs = await line.add(3)
    begun = await claimer.claim(3)

    waiting = variant(FINISH_RUNS, ("where j.id = o.id and ", "where j.id = o.id and " + _GATE))
    finish = await watcher.start_and_see_waiting(
        claimer.client.run(waiting, outcomes=outcomes(begun, "succeeded"), worker=str(claimer.worker))
    )
    await line.client.sql(change, [jobs[1]])
    await gate.sql(_OPEN)
    finished = sorted(ids(await finish))

    assert finished == ([jobs[0], jobs[2]] if change == _CHANGE else jobs)
    assert await line.running() == [job for job in jobs if job not in finished]
    await claimer.finish(begun)
    assert await line.states() == {"succeeded": 3}
