"""Contract, section 1: a worker of an app whose engine has another driver than psycopg."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import akadze.sync
from akadze import Akadze, AkadzeError, Worker, current
from akadze.job import Job
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

pytest.importorskip("asyncpg", reason="asyncpg is not installed")


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_worker_on_an_asyncpg_engine_does_all_that_it_has_to(
    database_url: str, table: Table, serve: Serve, hooked: bool
) -> None:
    app = Akadze(database_url=database_url.replace("postgresql://", "postgresql+asyncpg://"))
    assert app.engine.dialect.driver == "asyncpg"
    moves: list[tuple[int, str]] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        assert isinstance(connection, AsyncConnection)
        await connection.exec_driver_sql("select 1")
        moves.append((job.id, after))

    if hooked:
        app.hooks.on_transition.append(hook)

    @app.task("task", max_attempts=2, backoff=lambda attempt: timedelta(0))
    async def task(n: int) -> int:
        if current().job.run_count == 1:
            raise ValueError("first")
        return n

    @app.task("complete")
    async def complete() -> None:
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql("select 1")

    jobs = [await enqueue(task, {"n": 2**60}), await enqueue(complete)]
    expired = await enqueue(task, {"n": 1}, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    lost = await enqueue(task, {"n": 3})
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), lost)
    served = await serve(app, slots=3)
    await table.ended(*jobs, expired, lost)
    assert [(row["state"], row["result"]) for row in await table.jobs(*jobs)] == [
        ("succeeded", 2**60),
        ("succeeded", None),
    ]
    assert (await table.job(expired))["state"] == "cancelled"
    assert [(row["state"], row["attempt"], row["result"]) for row in await table.jobs(lost)] == [("succeeded", 1, 3)]
    await served.stop()
    assert ({job_id for job_id, _ in moves} == {*jobs, expired, lost}) == hooked
    await app.aclose()


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_plain_task_of_an_app_on_asyncpg_completes_on_a_connection_of_the_blocking_engine(
    database_url: str, table: Table, serve: Serve, hooked: bool
) -> None:
    app = Akadze(database_url=database_url.replace("postgresql://", "postgresql+asyncpg://"))
    moves: list[str] = []
    if hooked:
        app.hooks.on_transition.append(lambda connection, job, before, after: moves.append(after))

    @app.task("plain", max_attempts=1)
    def plain(fails: bool) -> str:
        with akadze.sync.current().complete_tx() as connection:
            assert connection.dialect.driver == "psycopg"
            connection.execute(text("insert into akadze.queue_pauses (queue) values (:fails)"), {"fails": str(fails)})
            if fails:
                raise ValueError("in the block")
        return "not stored"

    jobs = [await enqueue(plain, {"fails": fails}) for fails in (False, True)]
    served = await serve(app)
    await table.ended(*jobs)
    assert [(row["state"], row["result"], row["attempt"], row["error_names"]) for row in await table.jobs(*jobs)] == [
        ("succeeded", None, 0, []),
        ("failed", None, 1, ["ValueError"]),
    ]
    assert await table.rows("select queue from akadze.queue_pauses") == [{"queue": "False"}]
    await served.stop()
    assert sorted(moves) == (["failed", "running", "running", "succeeded"] if hooked else [])
    await app.aclose()


async def test_an_engine_that_goes_elsewhere_than_its_url_says_is_refused_before_anything_is_claimed(
    database_url: str, empty_database_url: str, table: Table
) -> None:
    akadze.sync.migrate(empty_database_url)
    url = empty_database_url.replace("postgresql://", "postgresql+asyncpg://")
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    engine = create_async_engine(url, connect_args={"database": name})
    app = Akadze(engine=engine)

    @app.task("task")
    async def task() -> None:
        raise AssertionError

    job_id = await enqueue(task)
    with pytest.raises(AkadzeError, match=f"the engine of the app connects to the database '{name}', but its URL"):
        await Worker(app).serve(asyncio.Event())
    assert (await table.job(job_id))["state"] == "queued"
    await engine.dispose()


@pytest.mark.parametrize("option", ["stream_results", "yield_per", "a pool that is taken"])
async def test_a_worker_starts_beside_the_pool_of_an_asyncpg_engine(
    database_url: str, table: Table, serve: Serve, option: str
) -> None:
    url = database_url.replace("postgresql://", "postgresql+asyncpg://")
    if "pool" in option:
        engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=600)
    else:
        engine = create_async_engine(url, execution_options={option: 10})
    app = Akadze(engine=engine)

    @app.task("task")
    async def task() -> None:
        pass

    # The helper's own statements would stream, too.
    job_id = await table.value("insert into akadze.jobs (task) values ('task') returning id")
    async with engine.connect() if "pool" in option else nullcontext():
        served = await serve(app)
        await table.ended(job_id)
        await served.stop()
    await engine.dispose()
