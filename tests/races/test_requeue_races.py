"""Contract, section 3: a requeue that meets another, an enqueue of its unique key, or retention."""

from __future__ import annotations

import pytest

from akadze import Akadze, AkadzeError, DuplicateJob, requeue
from akadze._statement import statement
from akadze.task import Task
from tests.claims.clients import Client, Watcher
from tests.claims.fixtures import Connect
from tests.claims.line import Line

_DELETE_OLD_JOBS = statement("cleanup", "delete_old_jobs")


@pytest.fixture
async def first(connect: Connect) -> Client:
    return await connect()


@pytest.fixture
async def second(connect: Connect) -> Client:
    return await connect()


@pytest.fixture
def task(app: Akadze) -> Task[[]]:
    async def body() -> None: ...

    return app.register(body, name="work")


async def delete_old(client: Client) -> int:
    """Delete what ended more than a minute ago; return how many."""
    rows = await client.run(_DELETE_OLD_JOBS, after=0, retention=60.0)
    deleted: int = rows[0]["deleted"]
    return deleted


async def test_of_two_requeues_at_once_the_second_is_told_that_the_job_is_queued_by_now(
    line: Line, first: Client, second: Client, watcher: Watcher
) -> None:
    job_id = await line.add_one(state="failed", attempt=3, unique_key="u")

    await first.begin()
    await requeue(first.raw, job_id)
    await second.begin()
    waiting = await watcher.start_and_see_waiting(requeue(second.raw, job_id))
    await first.commit()

    with pytest.raises(AkadzeError, match="is queued: only a failed job"):
        await waiting
    assert await second.value("select 1") == 1
    await second.commit()
    job = await line.job(job_id)
    assert (job["state"], job["attempt"], job["max_attempts"]) == ("queued", 3, 4)


async def test_of_two_requeues_at_once_the_second_succeeds_when_the_first_is_rolled_back(
    line: Line, first: Client, second: Client, watcher: Watcher
) -> None:
    job_id = await line.add_one(state="failed", attempt=3)

    await first.begin()
    await requeue(first.raw, job_id)
    waiting = await watcher.start_and_see_waiting(requeue(second.raw, job_id))
    await first.rollback()
    await waiting

    assert await line.state(job_id) == "queued"


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_an_enqueue_of_the_key_waits_for_an_open_requeue(
    line: Line, task: Task[[]], first: Client, second: Client, watcher: Watcher, end: str
) -> None:
    job_id = await line.add_one(state="failed", unique_key="u")

    await first.begin()
    await requeue(first.raw, job_id)
    waiting = await watcher.start_and_see_waiting(task.using(session=second.raw, unique_key="u").enqueue())
    await first.raw.execute(end)

    if end == "commit":
        with pytest.raises(DuplicateJob):
            await waiting
        assert await line.states() == {"queued": 1}
    else:
        await waiting
        assert await line.states() == {"queued": 1, "failed": 1}


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_requeue_waits_for_an_open_enqueue_of_its_key(
    line: Line, task: Task[[]], first: Client, second: Client, watcher: Watcher, end: str
) -> None:
    job_id = await line.add_one(state="failed", unique_key="u")

    await first.begin()
    await task.using(session=first.raw, unique_key="u").enqueue()
    await second.begin()
    waiting = await watcher.start_and_see_waiting(requeue(second.raw, job_id))
    await first.raw.execute(end)

    if end == "commit":
        with pytest.raises(AkadzeError, match="holds its unique_key"):
            await waiting
        assert await second.value("select 1") == 1, "the transaction is usable"
        await second.commit()
        assert await line.state(job_id) == "failed"
    else:
        await waiting
        await second.commit()
        assert await line.states() == {"queued": 1}


async def test_requeues_of_two_jobs_that_share_a_key_make_one(
    line: Line, first: Client, second: Client, watcher: Watcher
) -> None:
    one, other = await line.add(2, state="failed", unique_key="u")

    await first.begin()
    await requeue(first.raw, one)
    waiting = await watcher.start_and_see_waiting(requeue(second.raw, other))
    await first.commit()

    with pytest.raises(AkadzeError, match="holds its unique_key"):
        await waiting
    assert (await line.state(one), await line.state(other)) == ("queued", "failed")


async def test_retention_leaves_a_job_alone_that_is_being_requeued(line: Line, first: Client, second: Client) -> None:
    requeued, _old = await line.add(2, state="failed", after=-3600)

    await first.begin()
    await requeue(first.raw, requeued)
    assert await delete_old(second) == 1
    await first.commit()

    assert await delete_old(second) == 0
    assert await line.states() == {"queued": 1}
    assert await line.state(requeued) == "queued"


async def test_a_requeue_that_waits_for_retention_is_told_that_the_job_is_gone(
    line: Line, first: Client, second: Client, watcher: Watcher
) -> None:
    job_id = await line.add_one(state="failed", after=-3600)

    await first.begin()
    assert await delete_old(first) == 1
    waiting = await watcher.start_and_see_waiting(requeue(second.raw, job_id))
    await first.commit()

    with pytest.raises(AkadzeError, match="there is no job"):
        await waiting


async def test_a_requeue_that_waits_for_a_retention_that_is_rolled_back_succeeds(
    line: Line, first: Client, second: Client, watcher: Watcher
) -> None:
    job_id = await line.add_one(state="failed", after=-3600)

    await first.begin()
    await delete_old(first)
    waiting = await watcher.start_and_see_waiting(requeue(second.raw, job_id))
    await first.rollback()
    await waiting

    assert await line.state(job_id) == "queued"


async def test_two_cleanings_share_the_old_jobs(line: Line, first: Client, second: Client) -> None:
    await line.add(1500, state="succeeded", after=-3600)

    async with first.transaction():
        mine = await delete_old(first)
        others = await delete_old(second)

    assert mine == 1000
    assert others == 0, "its step saw the same rows, which are taken"
    assert await line.states() == {"succeeded": 500}
