"""Contract, section 12: drain on the caller's own open transaction, with every kind of session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from akadze import Akadze, AkadzeError, EnqueueError, Retry, list_jobs, pause_queue, request_cancel, set_limit
from akadze.testing import drain
from tests.coroutines import coroutine_task

from .callers import KINDS, Caller
from .conftest import Engine, Rows
from .table import states

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def ran() -> list[Any]:
    """What the tasks of these tests have done."""
    return []


@pytest.fixture
def work(app: Akadze, ran: list[Any]) -> Any:
    @app.task("work")
    def work(n: int = 0) -> int:
        ran.append(n)
        return n

    return work


@pytest.fixture
def broken(app: Akadze) -> Any:
    @app.task("broken", max_attempts=2, backoff=lambda attempt: timedelta(0))
    def broken() -> None:
        raise ZeroDivisionError

    return broken


@pytest.fixture(params=KINDS)
async def caller(request: pytest.FixtureRequest, engine: Engine, database_url: str) -> AsyncIterator[Caller]:
    async with KINDS[request.param](engine, database_url) as caller:
        yield caller


async def test_uncommitted_jobs_run_and_vanish_with_the_rollback(
    caller: Caller, work: Any, broken: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    await broken.using(session=caller.session, priority=1).enqueue()
    await work.using(session=caller.session).enqueue(n=1)
    assert await drain(app, session=caller.session) is None
    assert ran == [1]
    assert await rows("select from akadze.jobs") == []
    assert await rows("select from akadze.workers") == []
    shown = "select concat_ws(' ', state, run_count, attempt, result) from akadze.jobs order by id"
    assert await caller.execute(shown) == [("failed 2 2",), ("succeeded 1 0 1",)]
    await caller.rollback()
    assert await caller.execute("select count(*) from akadze.jobs") == [(0,)]
    await caller.rollback()


async def test_what_a_drain_did_is_kept_by_the_commit(
    caller: Caller, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    await work.using(session=caller.session).enqueue_many([{"n": 1}, {"n": 2}])
    await drain(app, session=caller.session)
    await work.using(session=caller.session).enqueue(n=3)
    await caller.commit()
    assert ran == [1, 2]
    assert await states(rows) == ["succeeded", "succeeded", "queued"]


async def test_committed_jobs_run_on_the_session_too(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue(n=1)
    async with engine.connect() as connection:
        await connection.begin()
        await drain(app, session=connection)
        assert (await list_jobs(connection))[0].state == "succeeded"
        await connection.rollback()
    assert ran == [1]
    assert await states(rows) == ["queued"]


async def test_both_kinds_of_function_run(engine: Engine, work: Any, app: Akadze, ran: list[Any]) -> None:
    coroutine = coroutine_task(app, ran)
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue(n=1)
        await coroutine.using(session=connection).enqueue(n=2)
        await drain(app, session=connection)
    assert ran == [1, 2]


async def test_a_failing_job_leaves_the_transaction_usable(
    engine: Engine, broken: Any, app: Akadze, rows: Rows
) -> None:
    async with engine.begin() as connection:
        await broken.using(session=connection).enqueue()
        await drain(app, session=connection)
        await connection.execute(text("insert into akadze.queue_pauses (queue) values ('after')"))
    assert await states(rows) == ["failed"]
    assert await rows("select queue from akadze.queue_pauses") == [{"queue": "after"}]


async def test_all_that_holds_for_a_drain_holds_on_a_session(
    engine: Engine, work: Any, app: Akadze, ran: list[Any]
) -> None:
    mail = app.register(lambda: ran.append("mail"), name="mail", queue="mail")
    async with engine.connect() as connection:
        await connection.begin()
        await work.using(session=connection, delay=timedelta(hours=1)).enqueue(n=1)
        await work.using(session=connection, expires_at=PAST).enqueue(n=2)
        await mail.using(session=connection).enqueue()
        await pause_queue(connection, "mail")
        await work.using(session=connection).enqueue(n=3)
        await request_cancel(connection, max(job.id for job in await list_jobs(connection)))
        await work.using(session=connection).enqueue(n=4)
        await drain(app, session=connection)
        assert ran == [4]
        found = sorted((job.id, job.state) for job in await list_jobs(connection))
        assert [state for _, state in found] == ["queued", "cancelled", "queued", "cancelled", "succeeded"]

        await set_limit(connection, "k", max_starts=1, window=timedelta(hours=1))
        await work.using(session=connection, limit_key="k").enqueue_many([{"n": 5}, {"n": 6}])
        with pytest.raises(AkadzeError, match="still ready after 3 runs"):
            await drain(app, limit=3, session=connection)
        assert ran == [4, 5]
        await connection.rollback()


async def test_a_job_that_is_not_known_is_an_error_and_the_transaction_goes_on(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("insert into akadze.jobs (task) values ('unknown')"))
        await work.using(session=connection).enqueue(n=1)
        with pytest.raises(AkadzeError, match="'unknown'"):
            await drain(app, session=connection)
    assert ran == [1]
    assert await states(rows) == ["queued", "succeeded"]


async def test_a_retry_without_delay_runs_again_in_the_same_transaction(
    engine: Engine, app: Akadze, ran: list[Any]
) -> None:
    @app.task("again")
    def again() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise Retry(timedelta(0))

    async with engine.begin() as connection:
        await again.using(session=connection).enqueue()
        await drain(app, session=connection)
    assert ran == [1, 1]


async def test_hooks_get_the_session_that_drain_was_given(engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []

    async def keep(connection: Any, job: Any, before: str, after: str) -> None:
        seen.append(connection)
        await connection.execute(text("insert into akadze.queue_pauses (queue) values (:queue)"), {"queue": after})

    app.hooks.on_transition.append(keep)
    async with AsyncSession(engine) as session:
        await work.using(session=session).enqueue()
        await drain(app, session=session)
        assert seen == [session, session]
        await session.rollback()
    assert await rows("select queue from akadze.queue_pauses") == []


async def test_a_psycopg_connection_in_autocommit_commits_step_by_step(
    database_url: str, work: Any, app: Akadze, rows: Rows
) -> None:
    async with await AsyncConnection.connect(database_url, autocommit=True) as connection:
        await work.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}])
        await drain(app, session=connection)
        assert await states(rows) == ["succeeded", "succeeded"]


async def test_what_is_no_session_is_refused(engine: Engine, app: Akadze) -> None:
    for wrong in (engine, "session", app, 7):
        with pytest.raises(AkadzeError, match="cannot be used as a session") as raised:
            await drain(app, session=wrong)
        assert not isinstance(raised.value, EnqueueError)
    async with engine.connect() as connection:
        with pytest.raises(AkadzeError, match="not in a transaction") as raised:
            await drain(app, session=connection)
        assert not isinstance(raised.value, EnqueueError)
