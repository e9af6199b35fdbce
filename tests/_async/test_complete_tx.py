"""Contract, sections 5 and 12: what a complete_tx block writes and the job's success are one transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from psycopg import AsyncConnection
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from akadze import Akadze, AkadzeError, sync
from akadze.context import SyncContext
from akadze.errors import RunLost
from akadze.testing import drain
from tests.coroutines import completing_task

from .conftest import Engine, Rows
from .table import states

PAUSE = text("insert into akadze.queue_pauses (queue) values (cast(:queue as text))")
LEFT = (
    "select state, run_count, attempt, result, worker_id, errors -> 0 ->> 'error' as error,"
    " finished_at is not null as ended from akadze.jobs order by id"
)
SUCCEEDED: dict[str, Any] = {
    "state": "succeeded", "run_count": 1, "attempt": 0, "result": None, "worker_id": None, "error": None, "ended": True,
}  # fmt: skip
FAILED = SUCCEEDED | {"state": "failed", "attempt": 1}


def plain_completing(app: Akadze, *, error: Exception | None = None, after: Exception | None = None) -> Any:
    @app.task("completing", max_attempts=1)
    def completing(queue: str) -> str:
        with sync.current().complete_tx() as connection:
            connection.execute(PAUSE, {"queue": queue})
            if error is not None:
                raise error
        if after is not None:
            raise after
        return "not stored"

    return completing


KINDS = {"plain": plain_completing, "coroutine": completing_task}


async def pauses(rows: Rows) -> list[str]:
    return [row["queue"] for row in await rows("select queue from akadze.queue_pauses order by queue")]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_the_block_writes_and_the_success_commit_together(
    kind: str, engine: Engine, app: Akadze, rows: Rows
) -> None:
    seen: list[Any] = []
    app.hooks.on_transition.append(lambda connection, job, before, after: seen.append((before, after)))
    task = KINDS[kind](app)
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue_many([{"queue": "a"}, {"queue": "b"}])
    await drain(app)
    assert await rows(LEFT) == [SUCCEEDED, SUCCEEDED]
    assert await pauses(rows) == ["a", "b"]
    assert seen == [("queued", "running"), ("running", "succeeded")] * 2


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_in_the_block_undoes_it_and_is_an_error_of_the_run(
    kind: str, engine: Engine, app: Akadze, rows: Rows
) -> None:
    task = KINDS[kind](app, error=ZeroDivisionError())
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue(queue="a")
    await drain(app)
    assert await rows(LEFT) == [FAILED | {"error": "ZeroDivisionError"}]
    assert await pauses(rows) == []


async def test_an_error_after_the_block_does_not_undo_it(engine: Engine, app: Akadze, rows: Rows) -> None:
    task = plain_completing(app, after=ZeroDivisionError())
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue(queue="a")
    await drain(app)
    assert await rows(LEFT) == [SUCCEEDED]
    assert await pauses(rows) == ["a"]


async def test_a_hook_that_refuses_the_success_undoes_the_block(engine: Engine, app: Akadze, rows: Rows) -> None:
    def refuse(connection: Any, job: Any, before: str, after: str) -> None:
        if after == "succeeded":
            raise ZeroDivisionError

    app.hooks.on_transition.append(refuse)
    task = plain_completing(app)
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue(queue="a")
    await drain(app)
    assert await rows(LEFT) == [FAILED | {"error": "ZeroDivisionError"}]
    assert await pauses(rows) == []


async def test_a_run_finishes_once(engine: Engine, app: Akadze, rows: Rows) -> None:
    refused: list[str] = []

    @app.task("twice", max_attempts=1)
    def twice() -> None:
        with sync.current().complete_tx() as connection:
            connection.execute(PAUSE, {"queue": "first"})
        try:
            with sync.current().complete_tx() as connection:
                connection.execute(PAUSE, {"queue": "second"})
        except AkadzeError as error:
            refused.append(str(error))

    async with engine.begin() as connection:
        await twice.using(session=connection).enqueue()
    await drain(app)
    assert await rows(LEFT) == [SUCCEEDED]
    assert await pauses(rows) == ["first"]
    assert len(refused) == 1
    assert "finished by complete_tx already" in refused[0]


async def test_a_run_that_has_lost_its_job_writes_nothing(engine: Engine, app: Akadze, rows: Rows) -> None:
    lost: list[BaseException] = []

    @app.task("late", max_attempts=5)
    def late() -> None:
        with app.sync_engine.begin() as connection:
            connection.execute(
                text("update akadze.jobs set state = 'cancelled', worker_id = null, finished_at = now()")
            )
        try:
            with sync.current().complete_tx() as connection:
                connection.execute(PAUSE, {"queue": "late"})
        except RunLost as error:
            lost.append(error)
            raise

    async with engine.begin() as connection:
        await late.using(session=connection).enqueue()
    await drain(app)
    assert len(lost) == 1
    assert isinstance(lost[0], AkadzeError)
    assert await pauses(rows) == []
    assert await rows("select state, errors from akadze.jobs") == [{"state": "cancelled", "errors": []}]


async def test_a_cancel_request_does_not_stop_a_block_that_commits(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("work")
    def work() -> None:
        with app.sync_engine.begin() as connection:
            sync.request_cancel(connection, sync.current().job.id)
        with sync.current().complete_tx():
            pass

    async with engine.begin() as connection:
        await work.using(session=connection).enqueue()
    await drain(app)
    assert await states(rows) == ["succeeded"]


async def test_current_shows_the_job_of_the_run_and_is_refused_outside(engine: Engine, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []

    @app.task("look", queue="mail")
    def look(n: int) -> None:
        context = sync.current()
        assert isinstance(context, SyncContext)
        job = context.job
        seen.append((job.task, job.queue, job.state, job.args, job.run_count, job.attempt, job.meta, job.unique_key))

    async with engine.begin() as connection:
        await look.using(session=connection, meta={"m": 1}, unique_key="u").enqueue(n=1)
    await drain(app)
    assert seen == [("look", "mail", "running", {"n": 1}, 1, 0, {"m": 1}, "u")]
    with pytest.raises(AkadzeError, match=r"current\(\) was called outside a job"):
        sync.current()


def own_completing(app: Akadze, *, error: Exception | None = None) -> Any:
    """A task of the colour of this folder."""
    if True:  # ASYNC
        return completing_task(app, error=error)
    else:
        return plain_completing(app, error=error)


def other_completing(app: Akadze) -> Any:
    """A task of the other colour than this folder."""
    if True:  # ASYNC
        return plain_completing(app)
    else:
        return completing_task(app)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_on_drain_s_session_the_block_is_part_of_its_transaction(
    end: str, engine: Engine, app: Akadze, rows: Rows
) -> None:
    task = own_completing(app)
    async with engine.connect() as connection:
        await connection.begin()
        await task.using(session=connection).enqueue(queue="a")
        await drain(app, session=connection)
        assert (await connection.execute(text("select queue from akadze.queue_pauses"))).scalars().all() == ["a"]
        if end == "commit":
            await connection.commit()
        else:
            await connection.rollback()
    assert await pauses(rows) == (["a"] if end == "commit" else [])
    assert await rows(LEFT) == ([SUCCEEDED] if end == "commit" else [])


async def test_on_drain_s_session_an_error_undoes_the_block_only(engine: Engine, app: Akadze, rows: Rows) -> None:
    task = own_completing(app, error=ZeroDivisionError())
    async with AsyncSession(engine) as session:
        await session.execute(PAUSE, {"queue": "before"})
        await task.using(session=session).enqueue(queue="a")
        await drain(app, session=session)
        await session.execute(PAUSE, {"queue": "after"})
        await session.commit()
    assert await pauses(rows) == ["after", "before"]
    assert await rows(LEFT) == [FAILED | {"error": "ZeroDivisionError"}]


@pytest.mark.parametrize("swallowed", [True, False])
async def test_on_drain_s_session_an_end_that_the_body_rolls_back_is_an_error_of_the_run(
    swallowed: bool, database_url: str, app: Akadze, rows: Rows
) -> None:
    if True:  # ASYNC
        import akadze

        async def body() -> None:
            with suppress(*[ZeroDivisionError] if swallowed else []):
                async with connection.transaction():
                    async with akadze.current().complete_tx():
                        pass
                    raise ZeroDivisionError
    else:

        def body() -> None:
            with suppress(*[ZeroDivisionError] if swallowed else []), connection.transaction():
                with sync.current().complete_tx():
                    pass
                raise ZeroDivisionError

    task = app.register(body, name="work", max_attempts=1)
    async with await AsyncConnection.connect(database_url) as connection:
        await task.using(session=connection).enqueue()
        await drain(app, session=connection)
    assert await rows(LEFT) == [FAILED | {"error": "AkadzeError"}]
    [row] = await rows("select errors -> 0 ->> 'message' as message from akadze.jobs")
    assert "rolled back" in row["message"]


async def test_on_a_session_of_the_other_colour_the_block_is_a_clear_error_of_the_run(
    engine: Engine, app: Akadze, rows: Rows
) -> None:
    task = other_completing(app)
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue(queue="a")
        await drain(app, session=connection)
        await connection.execute(PAUSE, {"queue": "after"})
    assert await rows(LEFT) == [FAILED | {"error": "AkadzeError"}]
    [row] = await rows("select errors -> 0 ->> 'message' as message from akadze.jobs")
    if True:  # ASYNC
        assert "drain with akadze.sync.testing.drain" in row["message"]
    else:
        assert "drain with akadze.testing.drain" in row["message"]
    assert await pauses(rows) == ["after"]


async def test_on_a_psycopg_session_the_block_gets_that_connection(database_url: str, app: Akadze, rows: Rows) -> None:
    given: list[Any] = []
    if True:  # ASYNC
        import akadze

        async def body() -> None:
            async with akadze.current().complete_tx() as connection:
                given.append(connection)
                await connection.execute("insert into akadze.queue_pauses (queue) values ('a')")
    else:

        def body() -> None:
            with sync.current().complete_tx() as connection:
                given.append(connection)
                connection.execute("insert into akadze.queue_pauses (queue) values ('a')")

    task = app.register(body, name="work")
    async with await AsyncConnection.connect(database_url) as connection:
        await task.using(session=connection).enqueue()
        await drain(app, session=connection)
        assert given == [connection]
        await connection.commit()
    assert await states(rows) == ["succeeded"]
    assert await pauses(rows) == ["a"]
