"""Contract, sections 3 and 6: request_cancel and requeue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from sqlalchemy import text

from akadze import Akadze, AkadzeError, EnqueueError, Snooze, request_cancel, requeue
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import ids, states

NO_JOB_CAN_BE: list[Any] = [0, -1, 2**63, "1", 1.0, None, True]


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note")
    def note(n: int = 0) -> None: ...

    return note


async def made(engine: Engine, task: Any, rows: Rows, **options: Any) -> int:
    async with engine.begin() as connection:
        await task.using(session=connection, **options).enqueue()
    return (await ids(rows))[-1]


@pytest.mark.parametrize("state", ["queued", "running"])
async def test_a_cancel_request_marks_a_live_job_and_leaves_its_state(
    state: str, engine: Engine, note: Any, rows: Rows
) -> None:
    job_id = await made(engine, note, rows)
    await rows("update akadze.jobs set state = :state", state=state)
    async with engine.begin() as connection:
        assert await request_cancel(connection, job_id) is None
    marked = await rows("select state, cancel_requested_at <= now() as asked from akadze.jobs")
    assert marked == [{"state": state, "asked": True}]


async def test_a_second_cancel_request_changes_nothing(engine: Engine, note: Any, rows: Rows) -> None:
    job_id = await made(engine, note, rows)
    async with engine.begin() as connection:
        await request_cancel(connection, job_id)
    first = await rows("select * from akadze.jobs")
    assert first[0]["cancel_requested_at"] is not None
    # Of a transaction of its own, which has a later time.
    async with engine.begin() as connection:
        await request_cancel(connection, job_id)
    assert await rows("select * from akadze.jobs") == first


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
async def test_a_job_that_has_ended_stays_as_it_is(state: str, engine: Engine, note: Any, rows: Rows) -> None:
    job_id = await made(engine, note, rows)
    await rows("update akadze.jobs set state = :state, finished_at = now()", state=state)
    before = await rows("select * from akadze.jobs")
    async with engine.begin() as connection:
        await request_cancel(connection, job_id)
    assert await rows("select * from akadze.jobs") == before


async def test_a_cancelled_job_does_not_run(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("work")
    def work() -> None:
        raise AssertionError("it was asked to cancel")

    job_id = await made(engine, work, rows)
    async with engine.begin() as connection:
        await request_cancel(connection, job_id)
    await drain(app)
    assert await rows(
        "select state, expired, run_count, errors, finished_at is not null as ended, worker_id from akadze.jobs"
    ) == [{"state": "cancelled", "expired": False, "run_count": 0, "errors": [], "ended": True, "worker_id": None}]


@pytest.mark.parametrize("call", [request_cancel, requeue])
async def test_a_job_that_is_not_there_is_an_error_and_the_transaction_goes_on(
    call: Any, engine: Engine, note: Any, rows: Rows
) -> None:
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match="no job 999") as raised:
            await call(connection, 999)
        await note.using(session=connection).enqueue()
    assert not isinstance(raised.value, EnqueueError)
    assert await states(rows) == ["queued"]


@pytest.mark.parametrize("call", [request_cancel, requeue])
@pytest.mark.parametrize("job_id", NO_JOB_CAN_BE)
async def test_what_is_no_id_is_refused(call: Any, job_id: Any, engine: Engine) -> None:
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match="job_id"):
            await call(connection, job_id)
        assert (await connection.execute(text("select 1"))).scalar() == 1


async def test_a_failed_job_goes_back_with_its_past(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("work", max_attempts=3, backoff=lambda attempt: timedelta(0))
    def work(text: str) -> None:
        raise ZeroDivisionError("always")

    async with engine.begin() as connection:
        await work.using(session=connection, unique_key="u", limit_key="k", meta={"m": 1}).enqueue(text="t")
    [job_id] = await ids(rows)
    for spent in (3, 4, 5):
        await drain(app)
        assert await rows(
            "select state, attempt, max_attempts, run_count, jsonb_array_length(errors) as errors from akadze.jobs"
        ) == [{"state": "failed", "attempt": spent, "max_attempts": spent, "run_count": spent, "errors": spent}]
        async with engine.begin() as connection:
            assert await requeue(connection, job_id) is None
        assert await rows(
            "select state, attempt, max_attempts, finished_at, cancel_requested_at, args, unique_key, limit_key, meta,"
            " run_at <= now() as due, jsonb_array_length(errors) as errors from akadze.jobs"
        ) == [
            {
                "state": "queued",
                "attempt": spent,
                "max_attempts": spent + 1,
                "finished_at": None,
                "cancel_requested_at": None,
                "args": {"text": "t"},
                "unique_key": "u",
                "limit_key": "k",
                "meta": {"m": 1},
                "due": True,
                "errors": spent,
            }
        ]


async def test_attempts_that_are_left_are_not_added_to(engine: Engine, note: Any, rows: Rows) -> None:
    job_id = await made(engine, note, rows, max_attempts=9)
    await rows("update akadze.jobs set state = 'failed', attempt = 2, finished_at = now()")
    async with engine.begin() as connection:
        await requeue(connection, job_id)
    assert await rows("select attempt, max_attempts from akadze.jobs") == [{"attempt": 2, "max_attempts": 9}]


async def test_a_job_with_the_most_attempts_there_are_can_be_requeued(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    job_id = await made(engine, note, rows, max_attempts=2147483647)
    await rows("update akadze.jobs set state = 'failed', attempt = max_attempts, finished_at = now()")
    async with engine.begin() as connection:
        await requeue(connection, job_id)
    await drain(app)
    assert await states(rows) == ["succeeded"]


async def test_snoozing_spends_no_attempt_however_often(engine: Engine, app: Akadze, rows: Rows) -> None:
    left = [300]

    @app.task("sleepy", max_attempts=1)
    def sleepy() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise Snooze(timedelta(0))

    await made(engine, sleepy, rows)
    await drain(app)
    assert await rows("select state, attempt, snoozes, run_count, errors from akadze.jobs") == [
        {"state": "succeeded", "attempt": 0, "snoozes": 300, "run_count": 301, "errors": []}
    ]


@pytest.mark.parametrize("state", ["queued", "running", "succeeded", "cancelled"])
async def test_only_a_failed_job_can_be_requeued(state: str, engine: Engine, note: Any, rows: Rows) -> None:
    job_id = await made(engine, note, rows)
    await rows("update akadze.jobs set state = :state", state=state)
    before = await rows("select * from akadze.jobs")
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match=f"is {state}: only a failed job"):
            await requeue(connection, job_id)
        assert (await connection.execute(text("select 1"))).scalar() == 1
    assert await rows("select * from akadze.jobs") == before


async def test_an_expired_or_cancelled_wish_of_the_past_does_not_end_a_requeued_job(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    job_id = await made(engine, note, rows, expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    await rows("update akadze.jobs set state = 'failed', cancel_requested_at = now(), finished_at = now()")
    async with engine.begin() as connection:
        await requeue(connection, job_id)
    await drain(app)
    assert await states(rows) == ["succeeded"]


async def test_a_key_with_a_new_holder_is_not_taken_back(engine: Engine, note: Any, rows: Rows) -> None:
    job_id = await made(engine, note, rows, unique_key="u")
    await rows("update akadze.jobs set state = 'failed', finished_at = now()")
    await made(engine, note, rows, unique_key="u")
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match="unique_key"):
            await requeue(connection, job_id)
        await note.using(session=connection).enqueue()
    assert await states(rows) == ["failed", "queued", "queued"]


async def test_requeue_calls_no_hooks(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []
    job_id = await made(engine, note, rows)
    await rows("update akadze.jobs set state = 'failed', finished_at = now()")
    app.hooks.on_transition.append(lambda *arguments: seen.append(arguments))
    app.hooks.on_enqueue.append(lambda *arguments: seen.append(arguments))
    async with engine.begin() as connection:
        await requeue(connection, job_id)
        await request_cancel(connection, job_id)
    assert seen == []


async def test_a_request_waits_for_nobody_who_only_reads(
    database_url: str, engine: Engine, note: Any, rows: Rows
) -> None:
    job_id = await made(engine, note, rows)
    async with (
        await AsyncConnection.connect(database_url) as reader,
        await AsyncConnection.connect(database_url, options="-c lock_timeout=200ms") as writer,
    ):
        await reader.execute("select * from akadze.jobs")
        await request_cancel(writer, job_id)
        await writer.commit()
        await reader.execute("select * from akadze.jobs for update")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await request_cancel(writer, job_id)
        await writer.rollback()
