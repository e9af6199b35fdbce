"""Contract, sections 6 and 15: pauses, and what queue_snapshot counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import (
    Akadze,
    AkadzeError,
    EnqueueError,
    QueueSnapshot,
    StateCount,
    list_paused_queues,
    pause_queue,
    queue_snapshot,
    resume_queue,
)
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import states

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note")
    def note() -> None: ...

    return note


@pytest.fixture
def mail(app: Akadze) -> Any:
    return app.register(lambda: None, name="mail", queue="mail")


async def test_pausing_is_idempotent_and_so_is_resuming(engine: Engine, rows: Rows) -> None:
    for _ in range(2):
        async with engine.begin() as connection:
            assert await pause_queue(connection, "mail") is None
            await pause_queue(connection, "mail")
    assert await list_paused_queues(engine) == ("mail",)
    for _ in range(2):
        async with engine.begin() as connection:
            assert await resume_queue(connection, "mail") is None
            await resume_queue(connection, "mail")
    assert await list_paused_queues(engine) == ()


async def test_paused_queues_are_listed_in_order(engine: Engine) -> None:
    async with engine.begin() as connection:
        for queue in ("b", "a_b", "ž", "A"):
            await pause_queue(connection, queue)
    assert await list_paused_queues(engine) == ("A", "a_b", "b", "ž")


@pytest.mark.parametrize("call", [pause_queue, resume_queue])
@pytest.mark.parametrize("queue", ["", "a\0", "\ud800", "x" * 513, 7, None])
async def test_a_name_that_no_queue_can_have_is_refused(call: Any, queue: Any, engine: Engine) -> None:
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match="queue") as raised:
            await call(connection, queue)
        assert (await connection.execute(text("select 1"))).scalar() == 1
    assert not isinstance(raised.value, EnqueueError)


async def test_jobs_of_a_paused_queue_wait_and_the_others_do_not(
    engine: Engine, note: Any, mail: Any, app: Akadze, rows: Rows
) -> None:
    async with engine.begin() as connection:
        await mail.using(session=connection, priority=9).enqueue()
        await note.using(session=connection).enqueue()
        await pause_queue(connection, "mail")
    await drain(app)
    assert await states(rows) == ["queued", "succeeded"]
    async with engine.begin() as connection:
        await resume_queue(connection, "mail")
    await drain(app)
    assert await states(rows) == ["succeeded", "succeeded"]


async def test_an_empty_table_has_no_counts_and_no_lag(engine: Engine) -> None:
    assert await queue_snapshot(engine) == QueueSnapshot(counts=(), lag=None, busy=0)


async def test_jobs_are_counted_by_queue_and_state(engine: Engine, note: Any, mail: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many([{}] * 6)
        await mail.using(session=connection).enqueue_many([{}] * 2)
    for state in ("running", "succeeded", "failed", "cancelled"):
        await rows(
            "update akadze.jobs set state = :state where id = (select min(id) from akadze.jobs where state = 'queued')",
            state=state,
        )
    await rows("update akadze.jobs set state = 'running' where id = (select max(id) from akadze.jobs)")
    snapshot = await queue_snapshot(engine)
    assert snapshot.counts == (
        StateCount("default", "cancelled", 1),
        StateCount("default", "failed", 1),
        StateCount("default", "queued", 2),
        StateCount("default", "running", 1),
        StateCount("default", "succeeded", 1),
        StateCount("mail", "queued", 1),
        StateCount("mail", "running", 1),
    )
    assert snapshot.busy == 2


async def test_the_lag_is_the_wait_of_the_oldest_ready_job(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue()
        await note.using(session=connection).enqueue()
    await rows(
        "update akadze.jobs set run_at = now() - interval '90 seconds' where id = (select min(id) from akadze.jobs)"
    )
    lag = (await queue_snapshot(engine)).lag
    assert lag is not None
    assert timedelta(seconds=90) <= lag < timedelta(seconds=150)


async def test_jobs_that_no_claim_could_take_have_no_lag(engine: Engine, note: Any, mail: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, delay=timedelta(hours=1)).enqueue()
        await note.using(session=connection, expires_at=PAST).enqueue()
        await mail.using(session=connection).enqueue()
        await pause_queue(connection, "mail")
    await rows("insert into akadze.jobs (task, state, run_at) values ('note', 'running', now() - interval '1 hour')")
    await rows(
        "insert into akadze.jobs (task, cancel_requested_at, run_at) values ('note', now(), now() - interval '1 hour')"
    )
    snapshot = await queue_snapshot(engine)
    assert snapshot.lag is None
    assert snapshot.busy == 1


async def test_a_snapshot_shows_committed_jobs(engine: Engine, note: Any) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue()
        assert (await queue_snapshot(engine)).counts == ()
    assert (await queue_snapshot(engine)).counts == (StateCount("default", "queued", 1),)
