"""Contract, sections 7, 10 and 11: hooks whose connection is lost or given up hurt their own job at most.

The connection may be lost by an outage, by the server, which ends a transaction that is open for too long, or by the
hook itself: SQLAlchemy gives a connection up for a statement that was cancelled.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from akadze import Akadze
from akadze.job import Job
from akadze.task import Task
from akadze.testing import drain
from tests.families import FULL, few
from tests.waiting import until
from tests.worker.serving import Serve, workers
from tests.worker.table import Table, enqueue, enqueue_many, open_table

SLOW = "select pg_sleep(600)"
END_SESSION = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity where query = %s and pid <> pg_backend_pid()"
)

#: Settings that make the server end a session for its transaction.
IDLE_FOR_LONG = ("idle_in_transaction_session_timeout", "400ms")
OPEN_FOR_LONG = ("transaction_timeout", "400ms")

#: The moves that a worker makes, and the state that each ends in.
MOVES = {"claim": "running", "finish": "succeeded", "cancel": "cancelled", "rescue": "queued"}


async def numbered(app: Akadze, table: Table, move: str, many: int) -> list[int]:
    """Enqueue jobs for which a worker has this move to make; their argument is their number."""

    @app.task("task", max_attempts=3, backoff=lambda attempt: timedelta(0))
    async def task(n: int) -> None:
        pass

    jobs = await enqueue_many(task, [{"n": n} for n in range(many)])
    if move == "cancel":
        await table.rows("update akadze.jobs set cancel_requested_at = now()")
    if move == "rescue":
        await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), *jobs)
    return jobs


@pytest.mark.parametrize(
    ("move", "how"),
    few(
        product(MOVES, ["raise", "wrap", "swallow"]),
        kept=[("claim", "raise"), ("finish", "wrap"), ("cancel", "swallow"), ("rescue", "swallow")],
    ),
)
async def test_an_outage_hurts_no_job_whatever_a_hook_makes_of_its_error(
    app: Akadze, table: Table, serve: Serve, move: str, how: str
) -> None:
    waiting = asyncio.Event()

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after != MOVES[move] or waiting.is_set():
            return
        waiting.set()
        try:
            await connection.execute(text(SLOW))
        except DBAPIError as error:
            if how == "raise":
                raise
            if how == "wrap":
                raise RuntimeError("the audit failed") from error

    app.hooks.on_transition.append(hook)
    jobs = await numbered(app, table, move, 3)
    served = await serve(slots=3)
    await waiting.wait()
    await until(lambda: table.value(END_SESSION, SLOW))
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {row["state"] for row in rows} == {"cancelled" if move == "cancel" else "succeeded"}
    assert {row["run_count"] for row in rows} == {{"cancel": 0, "rescue": 2}.get(move, 1)}
    assert served.up


@pytest.mark.usefixtures("short_transactions")
@pytest.mark.parametrize(
    ("move", "short_transactions", "then"),
    few(
        [
            *product(MOVES, [IDLE_FOR_LONG], ["return", "raise", "ask in silence", "hang"]),
            *product(MOVES, [OPEN_FOR_LONG], ["return"]),
        ],
        kept=[
            ("claim", IDLE_FOR_LONG, "return"),
            ("finish", IDLE_FOR_LONG, "raise"),
            ("cancel", IDLE_FOR_LONG, "ask in silence"),
            ("rescue", IDLE_FOR_LONG, "hang"),
            ("finish", OPEN_FOR_LONG, "return"),
        ],
    ),
    indirect=["short_transactions"],
)
async def test_a_hook_that_takes_longer_than_the_server_allows_keeps_no_other_job_waiting(
    database_url: str, move: str, then: str
) -> None:
    app = Akadze(database_url=database_url)

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == MOVES[move] and job.args["n"] == 1:
            await asyncio.sleep(600 if then == "hang" else 0.8)
            if then == "raise":
                raise ValueError("the other side did not answer")
            if then == "ask in silence":
                with suppress(Exception):
                    await connection.execute(text("select 1"))

    app.hooks.on_transition.append(hook)
    async with open_table(database_url) as table, workers(app, table) as serve:
        jobs = await numbered(app, table, move, 8)
        served = await serve(slots=4, heartbeat_ttl=4 if then == "hang" else 30)
        others = [job for job in jobs if job != jobs[1]]
        await table.ended(*others)
        left = {"claim": "queued", "finish": "running", "cancel": "queued", "rescue": "running"}
        assert (await table.job(jobs[1]))["state"] == left[move]
        assert served.up
    await app.aclose()


# The last two are idle for long where no single hook is: that shows when the transaction is looked at.
@FULL
@pytest.mark.usefixtures("short_transactions")
@pytest.mark.parametrize(
    ("move", "short_transactions", "asks"),
    few(
        [
            *product(MOVES, [OPEN_FOR_LONG], ["", "in silence"]),
            ("claim", IDLE_FOR_LONG, ""),
            ("finish", IDLE_FOR_LONG, ""),
        ],
        kept=[("finish", OPEN_FOR_LONG, "in silence"), ("finish", IDLE_FOR_LONG, "")],
    ),
    indirect=["short_transactions"],
)
async def test_hooks_that_together_take_longer_than_the_server_allows_are_called_for_fewer_jobs(
    database_url: str, move: str, asks: str
) -> None:
    app = Akadze(database_url=database_url)

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == MOVES[move]:
            await asyncio.sleep(0.03)
            if asks:
                with suppress(Exception):
                    await connection.execute(text("select 1"))

    app.hooks.on_transition.append(hook)
    async with open_table(database_url) as table, workers(app, table) as serve:
        jobs = await numbered(app, table, move, 60)
        served = await serve(slots=60)
        await table.ended(*jobs)
        assert {row["state"] for row in await table.jobs(*jobs)} == {"cancelled" if move == "cancel" else "succeeded"}
        assert served.up
    await app.aclose()


async def test_a_schedule_goes_on_when_a_hook_has_timed_a_statement_out(
    app: Akadze, table: Table, serve: Serve
) -> None:
    calls = []

    async def hook(connection: Any, job: Job) -> None:
        calls.append(job.id)
        if len(calls) == 1:
            async with asyncio.timeout(0.1):
                await connection.execute(text(SLOW))

    app.hooks.on_enqueue.append(hook)

    @app.periodic("tick", every=timedelta(seconds=1))
    async def tick() -> None:
        pass

    served = await serve()
    # Within the patience of a test, and long before the server would end what was left open.
    await table.until("select count(*) > 2 from akadze.jobs")
    assert await table.value("select count(*) = 0 from pg_stat_activity where state like 'idle in transaction%%'")
    assert served.up


async def test_a_schedule_whose_hook_costs_the_connection_each_time_keeps_no_other_waiting(
    app: Akadze, table: Table, serve: Serve
) -> None:
    async def hook(connection: Any, job: Job) -> None:
        if job.task == "bad":
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await connection.execute(text(SLOW))
            await connection.rollback()

    app.hooks.on_enqueue.append(hook)

    async def body() -> None:
        pass

    for name in ("bad", "good"):
        app.periodic(name, every=timedelta(seconds=1))(body)
    served = await serve()
    await table.until("select count(*) > 3 from akadze.jobs where task = 'good'")
    assert await table.value("select count(*) = 0 from pg_stat_activity where state = 'idle in transaction (aborted)'")
    assert served.up


# The second is what a step of upkeep may take where the lease is long: less than a hook.
@pytest.mark.parametrize("patience", [60.0, 0.7])
async def test_a_schedule_whose_hook_hangs_keeps_no_other_waiting(
    app: Akadze,
    table: Table,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
) -> None:
    monkeypatch.setattr("akadze._worker.upkeep._PATIENCE", patience)
    hung: list[int] = []

    async def hook(connection: Any, job: Job) -> None:
        if job.task == "bad":
            hung.append(job.id)
            await connection.execute(text("select pg_sleep(600)"))

    app.hooks.on_enqueue.append(hook)

    async def body() -> None:
        pass

    for name in ("bad", "good"):
        app.periodic(name, every=timedelta(seconds=1))(body)
    served = await serve(heartbeat_ttl=3)
    await until(lambda: hung)
    await table.until("select count(*) > 3 from akadze.jobs where task = 'good'")
    assert len(hung) == 1  # it is left alone for a quarter of the grace, 15 s
    assert "the hook test_a_schedule_whose_hook_hangs_keeps_no_other_waiting.<locals>.hook took longer than 1 s" in (
        caplog.text
    )
    assert await table.value("select count(*) from akadze.jobs where task = 'bad'") == 0
    assert served.up


@pytest.mark.parametrize("move", ["claim", "finish", "cancel"])
@pytest.mark.parametrize("how", few(["close", "end the session"], kept=["end the session"]))
async def test_jobs_whose_hooks_cost_the_connection_each_time_keep_no_other_waiting(
    app: Akadze, table: Table, serve: Serve, move: str, how: str
) -> None:
    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == MOVES[move] and job.args["n"] % 2:
            if how == "close":
                await connection.close()
            else:
                await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    app.hooks.on_transition.append(hook)
    jobs = await numbered(app, table, move, 6)
    served = await serve(slots=6)
    await table.ended(*jobs[::2])
    left = {"claim": "queued", "finish": "running", "cancel": "queued", "rescue": "running"}
    assert {row["state"] for row in await table.jobs(*jobs[1::2])} == {left[move]}
    assert served.up


@pytest.fixture
def slow_note(app: Akadze) -> Task[Any]:
    """A task whose on_enqueue hook waits for the database."""

    async def hook(connection: Any, job: Job) -> None:
        # Not as a stream, whose cursor SQLAlchemy would leave open.
        await connection.execute(text(SLOW), execution_options={"stream_results": False})

    app.hooks.on_enqueue.append(hook)

    @app.task("note")
    async def note() -> None:
        pass

    return note


@pytest.mark.parametrize("options", [{}, {"isolation_level": "AUTOCOMMIT"}, {"stream_results": True}], ids=str)
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_caller_that_is_cancelled_in_a_hook_gets_its_own_error(
    app: Akadze, table: Table, slow_note: Task[Any], options: dict[str, Any], how: str
) -> None:
    async with app.engine.connect() as opened:
        connection = await opened.execution_options(**options)
        await connection.begin()
        bound = slow_note.using(session=connection)
        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await bound.enqueue()
        else:
            calling = asyncio.create_task(bound.enqueue())
            await table.until("select exists (select from pg_stat_activity where query = %s)", SLOW)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        with suppress(DBAPIError):
            await connection.rollback()
    assert await table.value("select count(*) from akadze.jobs") == 0


async def test_drain_raises_what_a_hook_raised_that_has_cost_the_connection(app: Akadze, table: Table) -> None:
    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        async with asyncio.timeout(0.1):
            await connection.execute(text(SLOW))

    app.hooks.on_transition.append(hook)

    @app.task("task")
    async def task() -> None:
        pass

    job_id = await enqueue(task)
    with pytest.raises(TimeoutError):
        await drain(app)
    assert (await table.job(job_id))["state"] == "queued"
