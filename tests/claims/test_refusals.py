"""Contract, section 11: claims some of whose starts an on_transition hook refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze
from akadze.job import Job
from akadze.testing import drain
from tests.claims.exchanges import MakeExchange, Way
from tests.claims.exchanges import ids as row_ids
from tests.claims.line import Line

pytestmark = pytest.mark.parametrize("way", [Way.HOOKS], indirect=True, ids=["hooks"])

Refuse = Callable[[int], None]


@pytest.fixture
def refuse(app: Akadze) -> Refuse:
    """Refuse every start of a job from now on."""
    refused: set[int] = set()

    def hook(connection: Any, job: Job, from_state: str, to_state: str) -> None:
        if job.id in refused and to_state == "running":
            raise RuntimeError("refused")

    app.hooks.on_transition.append(hook)
    return refused.add


@pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])
async def test_a_refused_start_costs_no_other_job_its_start(
    line: Line, make_exchange: MakeExchange, refuse: Refuse, fair: bool
) -> None:
    jobs = [await line.add_one(after=-60 + second) for second in range(5)]
    exchange = await make_exchange(fair=fair)
    refuse(jobs[2])

    answer = await exchange.exchange([], {"default": 5})

    assert row_ids(answer.rows) == [*jobs[:2], *jobs[3:]]
    assert await line.state(jobs[2]) == "queued"
    assert (await line.job(jobs[2]))["run_count"] == 0


async def test_a_refused_job_leaves_the_line_for_a_moment_and_is_claimed_when_the_hook_has_recovered(
    line: Line, make_exchange: MakeExchange, refuse: Refuse, app: Akadze
) -> None:
    refused, other = await line.add(2)
    exchange = await make_exchange()
    refuse(refused)

    assert row_ids((await exchange.exchange([], {"default": 1})).rows) == []
    assert row_ids((await exchange.exchange([], {"default": 1})).rows) == [other]

    app.hooks.on_transition.pop()
    await line.client.sql("update akadze.jobs set run_at = now() where id = %s", [refused])
    rows = (await exchange.exchange([], {"default": 1})).rows
    assert [(row[0], row[6]) for row in rows] == [(refused, 1)]


async def test_limits_hold_when_starts_are_refused(line: Line, make_exchange: MakeExchange, refuse: Refuse) -> None:
    await line.limit("r", 2)
    await line.limit("s", max_starts=2, window=3600)
    running, starting = await line.add(5, key="r"), await line.add(5, key="s")
    exchange = await make_exchange()
    refuse(running[0])
    refuse(starting[0])

    for _ in range(4):
        await exchange.exchange([], {"default": 10})

    assert len(await line.running("r")) == 2
    assert len(await line.running("s")) == 2
    assert not {running[0], starting[0]} & {*await line.running()}


async def test_a_refused_start_is_no_start_of_its_limit(
    line: Line, make_exchange: MakeExchange, refuse: Refuse
) -> None:
    """A job that is refused again and again must not use up what the others of its key may start."""
    await line.limit("s", max_starts=3, window=3600)
    refused, *others = await line.add(3, key="s")
    exchange = await make_exchange()
    refuse(refused)

    for _ in range(4):
        await exchange.exchange([], {"default": 3})
        await line.client.sql("update akadze.jobs set run_at = now() where id = %s", [refused])

    assert await line.running() == others
    assert await line.starts("s") == 2


async def test_a_start_that_is_refused_to_drain_is_none_either(
    line: Line, make_exchange: MakeExchange, refuse: Refuse, app: Akadze
) -> None:
    await line.limit("s", max_starts=3, window=3600)
    refused, *others = await line.add(3, key="s")
    refuse(refused)

    await drain(app)

    assert [await line.state(job) for job in (refused, *others)] == ["queued", "succeeded", "succeeded"]
    assert await line.starts("s") == 2


@pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])
async def test_a_hook_may_roll_back_a_savepoint_of_its_own(
    line: Line, make_exchange: MakeExchange, app: Akadze, fair: bool
) -> None:
    async def hook(connection: Any, job: Job, from_state: str, to_state: str) -> None:
        savepoint = await connection.begin_nested()
        await connection.execute(text("select 1"))
        await savepoint.rollback()
        await connection.execute(text("select 2"))

    app.hooks.on_transition.append(hook)
    jobs = await line.add(3)
    exchange = await make_exchange(fair=fair)

    answers = [await exchange.exchange([], {"default": 1}) for _ in range(3)]

    assert [row_ids(answer.rows) for answer in answers] == [[job] for job in jobs]
