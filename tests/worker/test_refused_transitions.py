"""Contract, section 11: on_transition hooks that raise, each of which hurts its own job only."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from akadze import Akadze, current, set_limit
from akadze.job import Job
from tests.families import few
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


async def _raise_error(connection: Any) -> None:
    raise ValueError("refused")


async def _raise_base_exception(connection: Any) -> None:
    raise asyncio.CancelledError


async def _exit(connection: Any) -> None:
    raise SystemExit(3)


async def _break_the_transaction(connection: Any) -> None:
    await connection.execute(text("select 1 / 0"))


async def _break_the_transaction_in_silence(connection: Any) -> None:
    try:
        await connection.execute(text("select 1 / 0"))
    except DBAPIError:
        pass


async def _lose_another_connection(connection: Any) -> None:
    raise psycopg.OperationalError("the hook's own connection to another database is lost")


async def _time_a_statement_out(connection: Any) -> None:
    async with asyncio.timeout(0.05):
        await connection.execute(text("select pg_sleep(600)"))


async def _time_a_statement_out_in_silence(connection: Any) -> None:
    with suppress(TimeoutError):
        await _time_a_statement_out(connection)


async def _interrupt(connection: Any) -> None:
    raise KeyboardInterrupt


async def _invalidate_the_connection(connection: Any) -> None:
    await connection.invalidate()


async def _close_the_connection(connection: Any) -> None:
    await connection.close()


async def _end_the_session(connection: Any) -> None:
    await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))


async def _end_the_session_in_silence(connection: Any) -> None:
    with suppress(DBAPIError):
        await _end_the_session(connection)


REFUSALS = [
    _time_a_statement_out,
    _time_a_statement_out_in_silence,
    _invalidate_the_connection,
    _close_the_connection,
    _end_the_session,
    _end_the_session_in_silence,
    _raise_error,
    _raise_base_exception,
    _exit,
    _interrupt,
    _break_the_transaction,
    _break_the_transaction_in_silence,
    _lose_another_connection,
]


SOME = [_time_a_statement_out_in_silence, _close_the_connection, _raise_error, _break_the_transaction]


@pytest.mark.parametrize("refuse", few(REFUSALS, kept=SOME))
async def test_an_outcome_that_a_hook_refuses_leaves_its_own_job_running_until_the_worker_stops(
    app: Akadze, table: Table, serve: Serve, refuse: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = True

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if refusing and after == "succeeded" and job.args["n"] == 2:
            await refuse(connection)

    app.hooks.on_transition.append(hook)

    @app.task("task", max_attempts=1)
    async def task(n: int) -> int:
        return n

    jobs = await enqueue_many(task, [{"n": n} for n in range(5)])
    served = await serve(slots=5)
    others = [job_id for job_id in jobs if job_id != jobs[2]]
    await table.ended(*others)
    # The slot is free, and the worker goes on.
    more = await enqueue_many(task, [{"n": 9}] * 10)
    await table.ended(*more)
    row = await table.job(jobs[2])
    assert (row["state"], row["worker_id"], row["run_count"], row["errors"]) == ("running", served.id, 1, [])
    assert {row["state"] for row in await table.jobs(*others, *more)} == {"succeeded"}
    [told] = [record for record in caplog.records if f"job {jobs[2]} stays running" in record.getMessage()]
    assert "hook" in told.getMessage()
    if refuse is _raise_error:
        said = f"job {jobs[2]} stays running: the on_transition hook {hook.__qualname__} raised ValueError\n"
        assert told.getMessage().startswith(said)
    assert (told.levelname, told.exc_info) == ("ERROR", None), "what an exception says may hold arguments"
    refusing = False
    await served.stop()
    row = await table.job(jobs[2])
    assert (row["state"], row["attempt"]) == ("queued", 0)
    await serve()
    row = await table.ended(jobs[2])
    assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 0, 2)


@pytest.mark.parametrize("refuse", few(REFUSALS, kept=SOME))
async def test_a_complete_tx_that_a_hook_refuses_is_an_error_of_the_run_and_takes_its_writes_back(
    app: Akadze, table: Table, serve: Serve, refuse: Any
) -> None:
    await table.rows("create table public.written (number int)")

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "succeeded" and job.run_count == 1:
            await refuse(connection)

    app.hooks.on_transition.append(hook)

    @app.task("task", max_attempts=2, backoff=at_once)
    async def task() -> None:
        async with current().complete_tx() as connection:
            await connection.execute(text("insert into public.written values (1)"))

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"], len(row["errors"])) == ("succeeded", 1, 2, 1)
    assert await table.value("select count(*) from public.written") == 1


@pytest.mark.parametrize("refuse", few(REFUSALS, kept=SOME))
async def test_a_start_that_a_hook_refuses_leaves_its_own_job_queued(
    app: Akadze, table: Table, serve: Serve, refuse: Any
) -> None:
    refusals: list[int] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "running" and job.args["n"] == 2 and not refusals:
            refusals.append(1)
            await refuse(connection)

    app.hooks.on_transition.append(hook)

    @app.task("task", max_attempts=1)
    async def task(n: int) -> None:
        pass

    jobs = await enqueue_many(task, [{"n": n} for n in range(5)])
    served = await serve(slots=5)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["run_count"], row["attempt"]) for row in rows} == {("succeeded", 1, 0)}
    assert refusals == [1]
    assert served.up


@pytest.mark.parametrize("refuse", few(REFUSALS, kept=SOME))
@pytest.mark.parametrize("kind", ["rescue", "cancel"])
async def test_a_rescue_or_cancel_that_a_hook_refuses_hurts_its_own_job_only(
    app: Akadze, table: Table, serve: Serve, kind: str, refuse: Any
) -> None:
    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if job.args["n"] == 2:
            await refuse(connection)

    app.hooks.on_transition.append(hook)

    @app.task("task", max_attempts=1)
    async def task(n: int) -> None:
        pass

    jobs = await enqueue_many(task, [{"n": n} for n in range(5)])
    if kind == "rescue":
        await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), *jobs)
    else:
        await table.rows("update akadze.jobs set cancel_requested_at = now()")
    served = await serve(slots=5)
    others = [job_id for job_id in jobs if job_id != jobs[2]]
    await table.ended(*others)
    ended, left = ("failed", "running") if kind == "rescue" else ("cancelled", "queued")
    assert {row["state"] for row in await table.jobs(*others)} == {ended}
    assert (await table.job(jobs[2]))["state"] == left
    assert (await table.ended(await enqueue(task, {"n": 9})))["state"] == "succeeded"
    assert served.up


@pytest.mark.parametrize(("kind", "many"), few([("rescue", 120), ("cancel", 510)], kept=[("rescue", 120)]))
async def test_more_refused_moves_than_a_batch_holds_keep_none_of_the_others_waiting(
    app: Akadze, table: Table, serve: Serve, kind: str, many: int
) -> None:
    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if job.args["n"] < many:
            raise ValueError("refused")

    app.hooks.on_transition.append(hook)
    task = app.register(_hundreds, name="task", max_attempts=1)
    jobs = await enqueue_many(task, [{"n": n} for n in range(many + 5)])
    if kind == "rescue":
        await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), *jobs)
    else:
        await table.rows("update akadze.jobs set cancel_requested_at = now()")
    await serve()
    await table.ended(*jobs[many:])


@pytest.mark.parametrize("kind", ["rescue", "cancel"])
async def test_a_hook_that_hangs_in_a_rescue_or_cancel_stops_its_own_job_only(
    app: Akadze, table: Table, serve: Serve, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = asyncio.Event()
    raised = 0

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        nonlocal raised
        if job.args.get("n") == 4:
            raised += 1
            raise ValueError("not now")
        if job.args.get("n") in {1, 2}:
            hanging.set()
            await connection.execute(text("select pg_sleep(600)"))

    app.hooks.on_transition.append(hook)
    task = app.register(_hundreds, name="task", max_attempts=1)
    jobs = await enqueue_many(task, [{"n": n} for n in range(5)])
    if kind == "rescue":
        await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), *jobs)
    else:
        await table.rows("update akadze.jobs set cancel_requested_at = now()")

    @app.periodic("tick", every=timedelta(seconds=1))
    async def tick() -> None:
        pass

    served = await serve(heartbeat_ttl=3)
    await hanging.wait()
    await table.ended(jobs[0], jobs[3])
    await until(lambda: raised > 2)
    assert len({row["state"] for row in await table.jobs(jobs[1], jobs[2])} & {"running", "queued"}) == 1
    assert "took longer than 1 s" in caplog.text
    await table.until(
        "select count(*) > 1 from akadze.jobs where task = 'tick' and created_at > now() - interval '5 s'"
    )
    assert served.up


async def _hundreds(n: int) -> None:
    pass


@pytest.mark.parametrize("refuse", few(REFUSALS, kept=SOME))
async def test_a_hand_back_that_a_hook_refuses_hurts_its_own_job_only(
    app: Akadze, table: Table, serve: Serve, refuse: Any
) -> None:
    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "queued" and job.args["n"] == 1:
            await refuse(connection)

    app.hooks.on_transition.append(hook)

    @app.task("task")
    async def task(n: int) -> None:
        await asyncio.sleep(600)

    jobs = await enqueue_many(task, [{"n": n} for n in range(3)])
    served = await serve(slots=3, shutdown_timeout=0)
    await table.until("select count(*) = 3 from akadze.jobs where state = 'running'")
    await served.stop()
    assert [row["state"] for row in await table.jobs(*jobs)] == ["queued", "running", "queued"]


async def test_a_connection_that_is_lost_in_a_hook_hurts_no_job(app: Akadze, table: Table, serve: Serve) -> None:
    lost: list[int] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "succeeded" and not lost:
            lost.append(job.id)
            await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    @app.task("task", max_attempts=1)
    async def task() -> None:
        pass

    app.hooks.on_transition.append(hook)
    jobs = await enqueue_many(task, [{}] * 5)
    served = await serve(slots=5)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["run_count"], row["attempt"]) for row in rows} == {("succeeded", 1, 0)}
    assert lost
    assert served.up


@pytest.mark.parametrize(
    "end",
    few(
        ["rollback", "commit", "rollback in words", "rollback in words; select 1"], kept=["commit", "rollback in words"]
    ),
)
@pytest.mark.parametrize("state", ["running", "succeeded"])
async def test_a_hook_that_ends_the_transaction_hurts_its_own_job_only(
    app: Akadze, table: Table, serve: Serve, end: str, state: str
) -> None:
    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if job.args["n"] == 2 and after == state:
            if " " not in end:
                await getattr(connection, end)()
                return
            await connection.execute(text("rollback"))
            if ";" in end:
                await connection.execute(text("select 1"))  # begins another one

    app.hooks.on_transition.append(hook)
    runs: list[int] = []

    @app.task("task", max_attempts=1)
    async def task(n: int) -> None:
        runs.append(n)

    jobs = await enqueue_many(task, [{"n": n} for n in range(5)])
    served = await serve(slots=5)
    others = [job_id for job_id in jobs if job_id != jobs[2]]
    await table.ended(*others)
    await asyncio.sleep(1.5)  # it would be claimed again
    assert {row["state"] for row in await table.jobs(*others)} == {"succeeded"}
    refused = state == "running" and end != "commit"
    assert sorted(runs) == [n for n in range(5) if n != 2 or not refused]
    assert served.up


async def _at_once() -> None:
    pass


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("most", [1, 2])
async def test_a_job_whose_end_is_refused_counts_for_its_limit_in_the_same_exchange(
    app: Akadze, table: Table, serve: Serve, database_url: str, fair: bool, most: int
) -> None:
    """Its slot was to be another's, with the end that did not come."""
    begun: list[int] = []

    async def hook(connection: Any, job: Job, before: str, after: str) -> None:
        if after == "succeeded" and job.task == "first":
            raise ValueError("refused")

    app.hooks.on_transition.append(hook)
    first, free = app.register(_at_once, name="first"), app.register(_at_once, name="free")

    @app.task("second")
    async def second() -> None:
        begun.append(current().job.id)

    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await set_limit(connection, "k", most)
    stuck = [await enqueue(first, limit_key="k", priority=1) for _ in range(most)]
    await enqueue_many(second, [{}] * 5, limit_key="k")
    served = await serve(slots=10, fair=fair)
    await table.ended(await enqueue(free))
    assert [row["state"] for row in await table.jobs(*stuck)] == ["running"] * most
    await served.stop()
    assert begun == []
