"""Contract, section 5: what a complete_tx block writes and the success of its job commit together, in both colours."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import akadze.sync
from akadze import Akadze, AkadzeError, current
from akadze.errors import RunLost
from akadze.sync.testing import drain
from akadze.task import Task
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many

Register = Callable[..., Task[Any]]

WRITE = "insert into public.written values (1)"


def nothing() -> None:
    pass


class Blocks:
    """Bodies with complete_tx blocks, one for each colour."""

    def __init__(self, app: Akadze, colour: str) -> None:
        self._app = app
        self._colour = colour
        #: What blocks have raised and the body has caught.
        self.caught: list[BaseException] = []

    def register(
        self,
        *inside: Callable[[], Any],
        before: Callable[[], Any] = nothing,
        after: Callable[[], Any] = nothing,
        catching: type[Exception] | tuple[()] = (),
        **options: Any,
    ) -> Task[Any]:
        """Register a body with a block for each `inside`, which is called in it after a row has been written."""

        async def body() -> Any:
            before()
            for step in inside or [nothing]:
                try:
                    async with current().complete_tx() as connection:
                        assert isinstance(connection, AsyncConnection)
                        await connection.execute(text(WRITE))
                        step()
                except catching as error:
                    self.caught.append(error)
            return after()

        def sync_body() -> Any:
            before()
            for step in inside or [nothing]:
                try:
                    with akadze.sync.current().complete_tx() as connection:
                        assert isinstance(connection, Connection)
                        connection.execute(text(WRITE))
                        step()
                except catching as error:
                    self.caught.append(error)
            return after()

        return self._app.register(body if self._colour == "async" else sync_body, name="task", **options)


@pytest.fixture(params=["async", "sync"])
async def blocks(app: Akadze, table: Table, request: pytest.FixtureRequest) -> Blocks:
    await table.rows("create table public.written (number int)")
    return Blocks(app, request.param)


async def written(table: Table) -> int:
    return int(await table.value("select count(*) from public.written"))


def raising(error: BaseException) -> Callable[[], Any]:
    def throw() -> None:
        raise error

    return throw


async def test_the_writes_of_a_block_and_the_success_of_its_job_are_one_transaction(
    blocks: Blocks, table: Table, serve: Serve
) -> None:
    job_id = await enqueue(blocks.register(after=lambda: "not stored"))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["worker_id"]) == ("succeeded", 0, 1, None)
    assert row["result"] is None
    assert await table.value("select w.xmin = j.xmin from public.written w, akadze.jobs j")


async def test_an_error_inside_the_block_takes_its_writes_back_and_is_an_error_of_the_run(
    blocks: Blocks, table: Table, serve: Serve
) -> None:
    job_id = await enqueue(blocks.register(raising(ValueError("inside")), max_attempts=1))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["error_names"]) == ("failed", 1, ["ValueError"])
    assert await written(table) == 0


@pytest.mark.parametrize(
    "error", [ValueError("after"), asyncio.CancelledError(), SystemExit(1)], ids=lambda e: type(e).__name__
)
async def test_an_error_after_the_block_changes_nothing_and_is_logged(
    blocks: Blocks, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    job_id = await enqueue(blocks.register(after=raising(error), max_attempts=1))
    served = await serve()
    row = await table.ended(job_id)
    await served.stop()
    assert await table.job(job_id) == row
    assert (row["state"], row["attempt"], row["errors"]) == ("succeeded", 0, [])
    assert await written(table) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (warning,) = [warning for warning in warnings if f"job {job_id}" in warning]
    assert type(error).__name__ in warning
    # Where it was raised, but not what it says: that may hold arguments.
    assert f'File "{__file__}", line ' in warning


async def test_a_result_that_cannot_be_stored_after_the_block_does_not_matter(
    blocks: Blocks, table: Table, serve: Serve
) -> None:
    job_id = await enqueue(blocks.register(after=object, max_attempts=1))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["result"]) == ("succeeded", None)


async def test_a_block_that_fails_may_be_tried_again_in_the_same_run(
    blocks: Blocks, table: Table, serve: Serve
) -> None:
    job_id = await enqueue(blocks.register(raising(ValueError("first")), nothing, catching=ValueError))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["run_count"], row["errors"]) == ("succeeded", 1, [])
    assert await written(table) == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_block_on_an_engine_in_autocommit_is_refused_before_it_writes(
    colour: str, database_url: str, table: Table, serve: Serve
) -> None:
    """Its writes could not be taken back."""
    url = database_url.replace("postgresql://", "postgresql+psycopg://")
    engine, sync_engine = (make(url, isolation_level="AUTOCOMMIT") for make in (create_async_engine, create_engine))
    app = Akadze(engine=engine, sync_engine=sync_engine)
    await table.rows("create table public.written (number int)")
    job_id = await enqueue(Blocks(app, colour).register(max_attempts=1))
    await serve(app)
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["AkadzeError"])
    assert "AUTOCOMMIT" in row["errors"][0]["message"]
    assert await written(table) == 0
    await engine.dispose()
    sync_engine.dispose()


async def test_a_run_finishes_its_job_once(blocks: Blocks, table: Table, serve: Serve) -> None:
    job_id = await enqueue(blocks.register(nothing, nothing, catching=AkadzeError))
    served = await serve()
    assert (await table.ended(job_id))["state"] == "succeeded"
    await served.stop()
    (error,) = blocks.caught
    assert f"job {job_id} has been finished by complete_tx already" in str(error)
    assert await written(table) == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_a_block_that_ends_its_transaction_by_itself_is_told_to_leave_that(
    app: Akadze, table: Table, serve: Serve, colour: str, how: str
) -> None:
    await table.rows("create table public.written (number int)")

    async def body() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text(WRITE))
            await getattr(connection, how)()

    def sync_body() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text(WRITE))
            getattr(connection, how)()

    job_id = await enqueue(app.register(body if colour == "async" else sync_body, name="task", max_attempts=1))
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["AkadzeError"])
    said = "the transaction of complete_tx was ended inside its block"
    assert row["errors"][0]["message"].startswith(said)
    assert "leave commit() and rollback() to complete_tx" in row["errors"][0]["message"]
    assert "EnqueueError" not in row["errors"][0]["message"]
    assert await written(table) == (1 if how == "commit" else 0)


async def test_a_run_that_lost_its_job_finds_out_at_the_end_of_the_block(
    blocks: Blocks, database_url: str, table: Table, serve: Serve
) -> None:
    def rescue_and_claim() -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("update akadze.jobs set run_count = run_count + 1, attempt = 1")

    job_id = await enqueue(blocks.register(rescue_and_claim, catching=RunLost))
    # Its look for claims whose answer was lost, which would hand a made-up run back, comes no sooner than this.
    await serve(heartbeat_interval=60, heartbeat_ttl=300)
    await until(lambda: blocks.caught)
    assert f"run 1 no longer owns job {job_id}" in str(blocks.caught[0])
    assert await written(table) == 0
    row = await table.job(job_id)
    assert (row["state"], row["run_count"], row["attempt"], row["errors"]) == ("running", 2, 1, [])


async def test_a_cancel_request_does_not_stop_a_block_that_commits(
    blocks: Blocks, database_url: str, table: Table, serve: Serve
) -> None:
    def ask() -> None:
        with psycopg.connect(database_url) as connection:
            akadze.sync.request_cancel(connection, akadze.sync.current().job.id)

    job_id = await enqueue(blocks.register(before=ask))
    await serve()
    row = await table.ended(job_id)
    assert row["state"] == "succeeded"
    assert row["cancel_requested_at"] is not None
    assert await written(table) == 1


async def test_a_timeout_inside_a_block_takes_its_writes_back(app: Akadze, table: Table, serve: Serve) -> None:
    await table.rows("create table public.written (number int)")

    @app.task("slow", timeout=timedelta(seconds=0.2), max_attempts=1)
    async def slow() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text(WRITE))
            await connection.execute(text("select pg_sleep(600)"))

    job_id = await enqueue(slow)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["error_names"]) == ("failed", ["TimeoutError"])
    assert await written(table) == 0


async def test_a_block_that_is_open_when_the_worker_stops_is_rolled_back(
    app: Akadze, table: Table, serve: Serve
) -> None:
    await table.rows("create table public.written (number int)")
    release = threading.Event()
    lost: list[RunLost] = []
    begun: list[str] = []

    @app.task("async", max_attempts=1)
    async def async_task() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text(WRITE))
            begun.append("async")
            await asyncio.sleep(600)

    @app.task("sync", max_attempts=1)
    def sync_task() -> None:
        try:
            with akadze.sync.current().complete_tx() as connection:
                connection.execute(text(WRITE))
                begun.append("sync")
                release.wait(30)
        except RunLost as error:
            lost.append(error)

    jobs = [await enqueue(async_task), await enqueue(sync_task)]
    served = await serve(slots=2, shutdown_timeout=0)
    await until(lambda: len(begun) == 2)
    await served.stop()
    assert {(row["state"], row["attempt"]) for row in await table.jobs(*jobs)} == {("queued", 0)}
    # The thread goes on, and learns at the end of its block that the job is not its own any more.
    release.set()
    await until(lambda: lost)
    assert await written(table) == 0
    assert {row["state"] for row in await table.jobs(*jobs)} == {"queued"}


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_outside_complete_tx_a_running_job_holds_no_connection(
    colour: str, app: Akadze, table: Table, serve: Serve
) -> None:
    release, block, sync_release = asyncio.Event(), asyncio.Event(), threading.Event()

    async def body() -> None:
        await release.wait()

    def sync_body() -> None:
        sync_release.wait(30)

    wait = app.register(body if colour == "async" else sync_body, name="wait")

    @app.task("hold")
    async def hold() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text("select 1"))
            await block.wait()

    jobs = await enqueue_many(wait, [{}] * 30)
    await serve(slots=31)
    await table.until("select count(*) = 30 from akadze.jobs where state = 'running'")
    await table.until(f"select count(*) filter (where xact_start is not null) = 0 {SESSIONS}")
    # A handful of the worker's own, and what the pool keeps open.
    assert await table.value(f"select count(*) {SESSIONS}") <= 8
    jobs.append(await enqueue(hold))
    await table.until(f"select count(*) = 1 {SESSIONS} and state = 'idle in transaction'")
    block.set()
    release.set()
    sync_release.set()
    await table.ended(*jobs)
    assert set((await table.states()).values()) == {"succeeded"}


async def test_more_blocks_than_connections_take_turns(database_url: str, table: Table, serve: Serve) -> None:
    engine = create_async_engine(
        database_url.replace("postgresql://", "postgresql+psycopg://"), pool_size=2, max_overflow=0
    )
    app = Akadze(engine=engine)

    @app.task("hold")
    async def hold() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text("select pg_sleep(0.2)"))

    jobs = await enqueue_many(hold, [{}] * 12)
    served = await serve(app, slots=6, heartbeat_ttl=1)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["run_count"]) for row in rows} == {("succeeded", 1)}
    await served.stop()
    await app.aclose()
    await engine.dispose()


async def test_the_async_block_in_a_plain_function_names_the_other_module(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("wrong", max_attempts=1)
    def wrong() -> None:
        with current().complete_tx():  # type: ignore[attr-defined]
            pass

    job_id = await enqueue(wrong)
    await serve()
    (entry,) = (await table.in_state(job_id, "failed"))["errors"]
    assert entry["error"] == "AkadzeError"
    assert "akadze.sync.current()" in entry["message"]


@pytest.mark.parametrize("how", ["with", "async with"])
@pytest.mark.parametrize("runner", ["worker", "sync drain"])
async def test_the_blocking_block_in_an_async_function_names_the_other_module(
    app: Akadze, table: Table, serve: Serve, runner: str, how: str
) -> None:
    await table.rows("create table public.written (number int)")

    @app.task("wrong", max_attempts=1)
    async def wrong() -> None:
        if how == "with":
            with akadze.sync.current().complete_tx() as connection:
                connection.execute(text(WRITE))
        else:
            async with akadze.sync.current().complete_tx():  # type: ignore[attr-defined]
                pass

    job_id = await enqueue(wrong)
    await (serve() if runner == "worker" else asyncio.to_thread(drain, app))
    (entry,) = (await table.in_state(job_id, "failed"))["errors"]
    assert entry["error"] == "AkadzeError"
    assert "use akadze.current(), and `async with`" in entry["message"]
    assert await written(table) == 0


async def test_the_blocking_block_in_a_thread_that_an_async_function_waits_for_finishes_its_job(
    app: Akadze, table: Table, serve: Serve
) -> None:
    await table.rows("create table public.written (number int)")

    def write() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text(WRITE))

    @app.task("threads")
    async def threads() -> None:
        await asyncio.to_thread(write)

    job_id = await enqueue(threads)
    await serve()
    assert (await table.in_state(job_id, "succeeded"))["errors"] == []
    assert await written(table) == 1
