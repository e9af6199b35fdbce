"""Contract, section 4: an outcome of a run that lost its job writes nothing."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from akadze._statement import Statement, statement
from tests.claims.claiming import FINISH_RUNS, Claimer, outcomes
from tests.claims.clients import Row, variant
from tests.claims.exchanges import MakeExchange
from tests.claims.fixtures import Connect
from tests.claims.line import Line

_COMPLETE_RUN = statement("finish", "complete_run")

#: What may have become of the job meanwhile, and the part of the guard that keeps the late outcome out.
_LOSSES = {
    "rescued": "state = 'queued', worker_id = null, attempt = 1",
    "rescued and running under another worker": "worker_id = gen_random_uuid(), attempt = 1",
    "running again under the same worker": "run_count = run_count + 1, attempt = 1",
    "running again under another worker": "worker_id = gen_random_uuid(), run_count = run_count + 1, attempt = 1",
    "failed by a rescue": "state = 'failed', worker_id = null, attempt = 1, finished_at = now()",
    "cancelled by a rescue": "state = 'cancelled', worker_id = null, attempt = 1, finished_at = now()",
    "deleted": None,
}
_GUARDS = {
    "rescued and running under another worker": ("j.worker_id = cast(:worker as uuid) and ", ""),
    "running again under the same worker": (" and j.run_count = o.run", ""),
}
_COMPLETE_GUARDS = {
    "rescued and running under another worker": ("j.worker_id = cast(:worker as uuid)", "true"),
    "running again under the same worker": ("j.run_count = cast(:run as integer)", "true"),
}


@pytest.fixture
async def claimer(connect: Connect) -> Claimer:
    return Claimer(await connect())


async def lose(line: Line, job: Row, loss: str) -> None:
    change = _LOSSES[loss]
    if change is None:
        await line.client.sql("delete from akadze.jobs where id = %s", [job["id"]])
    else:
        await line.client.sql(f"update akadze.jobs set {change} where id = %s", [job["id"]])


async def all_jobs(line: Line) -> list[Row]:
    return await line.client.sql("select * from akadze.jobs order by id")


@pytest.mark.parametrize("loss", _LOSSES)
async def test_a_late_outcome_writes_nothing(line: Line, claimer: Claimer, loss: str) -> None:
    await line.add()
    begun = await claimer.claim(1)
    await lose(line, begun[0], loss)
    before = await all_jobs(line)

    for state in ("succeeded", "failed", "queued", "cancelled"):
        answer = await claimer.finish(begun, state, attempt=5, delay=9, error={"error": "Late", "message": ""})
        assert (state, answer) == (state, [])

    assert await all_jobs(line) == before


@pytest.mark.parametrize("loss", _LOSSES)
async def test_a_late_outcome_spoils_nothing_for_the_others_of_its_exchange(
    line: Line, make_exchange: MakeExchange, loss: str
) -> None:
    first, lost, last = await line.add(3)
    exchange = await make_exchange()
    begun = (await exchange.exchange([], {"default": 3})).rows
    await lose(line, {"id": lost}, loss)
    sent = [(row[0], row[6], f'{{"id":{row[0]},"run":1,"state":"succeeded","result":7}}') for row in begun]

    answer = await exchange.exchange(sent, {"default": 3})

    assert answer.written == {(first, 1), (last, 1)}
    assert await exchange.owned([(lost, 1)]) == set()


@pytest.mark.parametrize("loss", _GUARDS)
async def test_without_its_guard_a_late_outcome_would_be_written(line: Line, claimer: Claimer, loss: str) -> None:
    job_id = await line.add_one()
    begun = await claimer.claim(1)
    await lose(line, begun[0], loss)
    careless = variant(FINISH_RUNS, _GUARDS[loss])

    await claimer.client.run(careless, outcomes=outcomes(begun, "succeeded"), worker=str(claimer.worker))

    assert await line.state(job_id) == "succeeded"


async def test_without_looking_at_the_state_a_late_outcome_would_end_a_job_that_was_handed_back(
    line: Line, claimer: Claimer
) -> None:
    """The same worker and run: what it has handed back itself, and then finishes after all."""
    job_id = await line.add_one()
    begun = await claimer.claim(1)
    await line.client.sql("update akadze.jobs set state = 'queued' where id = %s", [job_id])
    assert await claimer.finish(begun) == []

    careless = variant(FINISH_RUNS, ("j.state || '' = 'running' and ", ""))
    await claimer.client.run(careless, outcomes=outcomes(begun, "succeeded"), worker=str(claimer.worker))

    assert await line.state(job_id) == "succeeded"


@pytest.mark.parametrize("loss", _LOSSES)
async def test_a_late_complete_tx_writes_nothing(line: Line, claimer: Claimer, loss: str) -> None:
    await line.add()
    begun = await claimer.claim(1)
    await lose(line, begun[0], loss)
    before = await all_jobs(line)

    assert await complete(claimer, begun[0], _COMPLETE_RUN) == []
    assert await all_jobs(line) == before


@pytest.mark.parametrize("loss", _COMPLETE_GUARDS)
async def test_without_its_guard_a_late_complete_tx_would_be_written(line: Line, claimer: Claimer, loss: str) -> None:
    job_id = await line.add_one()
    begun = await claimer.claim(1)
    await lose(line, begun[0], loss)

    assert len(await complete(claimer, begun[0], variant(_COMPLETE_RUN, _COMPLETE_GUARDS[loss]))) == 1
    assert await line.state(job_id) == "succeeded"


async def test_another_worker_cannot_finish_a_run(line: Line, claimer: Claimer, connect: Connect) -> None:
    job_id = await line.add_one()
    begun = await claimer.claim(1)

    assert await replace(claimer, worker=uuid4()).finish(begun) == []
    assert await line.state(job_id) == "running"
    assert len(await claimer.finish(begun)) == 1


async def complete(claimer: Claimer, job: Row, complete_run: Statement) -> list[Row]:
    values = {"id": job["id"], "worker": str(claimer.worker), "run": job["run_count"]}
    return await claimer.client.run(complete_run, **{name: values[name] for name in complete_run.names})
