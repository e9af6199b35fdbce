"""Contract, section 12: a drain whose job somebody else's transaction holds when its body has ended."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from akadze import Akadze, AkadzeError, current
from akadze.sync.testing import drain
from akadze.testing import drain as async_drain
from tests.worker.table import Table, enqueue


class Holder:
    """Locks the row of the running job, as a cancel request or a claim of others does for a moment."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    def hold(self, job_id: int) -> None:
        self._connection = psycopg.connect(self._url)
        self._connection.execute("select from akadze.jobs where id = %s for update", [job_id])

    def release(self) -> None:
        self._connection.close()


@pytest.fixture
def holder(database_url: str) -> Holder:
    return Holder(database_url)


async def drain_in(colour: str, app: Akadze) -> None:
    await (async_drain(app) if colour == "async" else asyncio.to_thread(drain, app))


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_drain_waits_for_who_holds_its_job_and_writes_the_outcome(
    app: Akadze, table: Table, holder: Holder, colour: str
) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> str:
        holder.hold(current().job.id)
        threading.Timer(0.3, holder.release).start()
        return "done"

    job_id = await enqueue(task)
    await drain_in(colour, app)
    row = await table.job(job_id)
    assert (row["state"], row["result"], row["run_count"], row["attempt"]) == ("succeeded", "done", 1, 0)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_drain_whose_job_stays_held_says_so(
    app: Akadze, table: Table, holder: Holder, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._async.drain._TRIES", 3)
    monkeypatch.setattr("akadze._sync.drain._TRIES", 3)

    @app.task("task")
    async def task() -> None:
        holder.hold(current().job.id)

    job_id = await enqueue(task)
    with pytest.raises(AkadzeError, match=f"job {job_id} has run, and another transaction holds its row"):
        await drain_in(colour, app)
    holder.release()


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_drain_whose_job_was_taken_from_it_leaves_it_alone(app: Akadze, table: Table, colour: str) -> None:
    calls: list[int] = []

    @app.task("task")
    async def task() -> None:
        calls.append(current().job.id)
        await asyncio.to_thread(take)

    def take() -> None:
        with psycopg.connect(app.engine.url.set(drivername="postgresql").render_as_string(False)) as connection:
            connection.execute("update akadze.jobs set state = 'cancelled', finished_at = now(), worker_id = null")

    job_id = await enqueue(task)
    await drain_in(colour, app)
    row: dict[str, Any] = await table.job(job_id)
    assert (row["state"], calls) == ("cancelled", [job_id])
