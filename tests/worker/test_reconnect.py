"""Contract, section 7: outages of the database, waited for when they pass, and a worker's end when they do not."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

import akadze.sync
from akadze import Akadze, AkadzeError, Worker, current, dev
from akadze._worker.outage import Outage, Outages
from tests.servers import skip_without_programs
from tests.waiting import until
from tests.worker.proxy import Proxy
from tests.worker.serving import Serve, workers
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many, open_table

TERMINATE = f"select pg_terminate_backend(pid) {SESSIONS}"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "akadze.worker" and record.levelno >= logging.WARNING
    ]


async def test_a_worker_whose_connections_are_terminated_goes_on_and_loses_nothing(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> None:
        await asyncio.sleep(0.01)

    served = await serve(slots=5)
    jobs: list[int] = []
    for _ in range(4):
        jobs += await _persistently(task, 25)
        await table.rows(TERMINATE)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["attempt"], str(row["errors"])) for row in rows} == {("succeeded", 0, "[]")}
    assert served.up


async def _persistently(task: Any, count: int) -> list[int]:
    """Enqueue as an application does whose pool holds connections that the server has closed."""
    try:
        return await enqueue_many(task, [{}] * count)
    except DBAPIError:
        return await enqueue_many(task, [{}] * count)


async def test_an_application_enqueues_at_the_second_try_after_its_connections_were_closed(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    served = await serve()
    await table.ended(await enqueue(task))
    await table.rows(TERMINATE)
    assert (await table.ended(*await _persistently(task, 1)))["state"] == "succeeded"
    assert served.up


async def test_outcomes_wait_for_the_database_and_bodies_do_not_run_again_for_it(
    distant: Akadze, proxy: Proxy, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()
    runs: list[int] = []

    @distant.task("task", max_attempts=3)
    async def task(n: int) -> int:
        runs.append(n)
        await release.wait()
        if n == 2:
            raise ValueError("two")
        return n

    jobs = await enqueue_many(task, [{"n": n} for n in range(4)])
    served = await serve(distant, slots=4, heartbeat_ttl=30)
    await until(lambda: len(runs) == 4)
    proxy.cut()
    release.set()
    await until(lambda: any("out of reach" in warning for warning in warnings_of(caplog)))
    assert served.up
    assert {row["state"] for row in await table.jobs(*jobs)} == {"running"}
    proxy.restore()
    await table.ended(jobs[0], jobs[1], jobs[3])
    retried = await table.in_state(jobs[2], "queued")
    assert (retried["attempt"], retried["error_names"]) == (1, ["ValueError"])
    assert [row["result"] for row in await table.jobs(jobs[0], jobs[1], jobs[3])] == [0, 1, 3]
    assert sorted(runs) == [0, 1, 2, 3]
    await served.stop()


async def test_a_stop_that_leaves_outcomes_unwritten_is_an_error(
    distant: Akadze, proxy: Proxy, table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_WRITE", 0.3)
    release = asyncio.Event()

    @distant.task("task")
    async def task() -> None:
        await release.wait()

    job_id = await enqueue(task)
    served = await serve(distant, heartbeat_ttl=3)
    await table.in_state(job_id, "running")
    proxy.cut()
    release.set()
    served.stopping.set()
    with pytest.raises(AkadzeError, match="1 outcomes"):
        await served.join()
    assert (await table.job(job_id))["state"] == "running"
    proxy.restore()
    await serve(distant)
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["error_names"]) == ("succeeded", 1, ["WorkerLost"])


async def test_an_outage_is_logged_once_and_so_is_its_end(
    distant: Akadze, proxy: Proxy, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    @distant.task("task")
    async def task(secret: str) -> str:
        return secret

    job_id = await enqueue(task, {"secret": "a pa55word"})
    served = await serve(distant, heartbeat_ttl=30)
    await table.ended(job_id)

    async def warned(times: int) -> None:
        await until(lambda: len(warnings_of(caplog)) == times)

    for outage in (1, 2):
        proxy.cut()
        last = await table.value("select max(heartbeat_at) from akadze.workers")
        await warned(2 * outage - 1)
        await asyncio.sleep(0.5)  # several duties try several times
        proxy.restore()
        await table.until("select max(heartbeat_at) > %s from akadze.workers", last)
        await warned(2 * outage)
    assert served.up
    warnings = warnings_of(caplog)
    assert [warning.startswith("the database is out of reach") for warning in warnings] == [True, False] * 2
    assert [warning == "the database is back" for warning in warnings] == [False, True] * 2
    assert "pa55word" not in caplog.text
    await served.stop()


async def test_the_pauses_between_tries_grow_up_to_a_second_and_begin_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("akadze._worker.outage.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("akadze._worker.outage.random", SimpleNamespace(uniform=lambda low, high: high))
    outage = Outage(Outages(), "claim")
    for _ in range(7):
        await outage.wait(OSError())
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1, 1]
    outage.over()
    await outage.wait(OSError())
    await outage.wait(OSError(), most=0.01)
    assert pauses[7:] == [0.05, 0.01]


async def test_no_duty_of_a_worker_hammers_a_database_that_is_away(
    distant: Akadze, proxy: Proxy, table: Table, serve: Serve
) -> None:
    distant.register(_nothing, name="task")
    served = await serve(distant, heartbeat_interval=0.05, heartbeat_ttl=30)
    await table.until("select sleeping from akadze.workers")  # it listens
    proxy.cut()
    await asyncio.sleep(1.5)  # what is counted is how often it tries
    # Claims, heartbeat, upkeep and wake-ups, each with seven tries at most.
    assert 4 <= proxy.refused <= 40
    proxy.restore()
    await served.stop()


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_complete_tx_block_that_loses_its_connection_is_an_error_of_the_run(
    distant: Akadze, proxy: Proxy, table: Table, serve: Serve, colour: str
) -> None:
    await table.rows("create table public.done (number int)")
    cut = threading.Event()
    insert = "insert into public.done values (1)"

    async def body() -> None:
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql(insert)
            if not cut.is_set():
                cut.set()
                proxy.cut()

    def sync_body() -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.exec_driver_sql(insert)
            if not cut.is_set():
                cut.set()
                loop.call_soon_threadsafe(proxy.cut)
                connection.exec_driver_sql("select pg_sleep(20)")

    loop = asyncio.get_running_loop()
    task = distant.register(body if colour == "async" else sync_body, name="task")
    job_id = await enqueue(task)
    served = await serve(distant, heartbeat_ttl=30)
    await until(cut.is_set)
    proxy.restore()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 1, 2)
    assert row["error_names"] == ["OperationalError"]
    assert await table.value("select count(*) from public.done") == 1
    await served.stop()


async def test_a_worker_reconnects_though_every_connection_of_the_pool_is_taken(
    database_url: str, table: Table, serve: Serve
) -> None:
    engine = create_async_engine(
        database_url.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=0
    )
    app = Akadze(engine=engine)
    holding, release = asyncio.Event(), asyncio.Event()

    @app.task("hold")
    async def hold() -> None:
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql("select 1")
            holding.set()
            await release.wait()

    job_id = await enqueue(hold)
    served = await serve(app, heartbeat_ttl=2)
    await until(holding.is_set)
    await table.until(f"select count(*) = 1 {SESSIONS} and state = 'idle in transaction'")
    await table.rows(f"{TERMINATE} and state <> 'idle in transaction'")
    last = await table.value("select heartbeat_at from akadze.workers")
    await table.until("select heartbeat_at > %s from akadze.workers", last)
    release.set()
    row = await table.ended(job_id)
    assert (row["state"], row["run_count"]) == ("succeeded", 1)
    await served.stop()
    await app.aclose()
    await engine.dispose()


async def test_a_restart_of_the_server_loses_no_job_and_spends_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    skip_without_programs()
    with await asyncio.to_thread(dev.start) as server:
        url = server.url()
        await akadze.migrate(url)
        app = Akadze(database_url=url)

        @app.task("task", max_attempts=1)
        async def task() -> None:
            await asyncio.sleep(0.02)

        async with open_table(url) as table:
            jobs = await enqueue_many(task, [{}] * 300)
            async with workers(app, table) as serve:
                served = await serve(slots=10, heartbeat_ttl=60)
                await table.until("select count(*) > 50 from akadze.jobs where state = 'succeeded'")
                await asyncio.to_thread(server.restart, "immediate")
                async with open_table(url) as after:
                    await after.until("select count(*) = 300 from akadze.jobs where state = 'succeeded'")
                    rows = await after.jobs(*jobs)
                    assert {(row["attempt"], str(row["errors"])) for row in rows} == {(0, "[]")}
                    assert served.up
        await app.aclose()


@pytest.mark.parametrize("kind", ["deadlock", "serialization", "lock timeout", "read only"])
async def test_errors_that_pass_are_tried_again(
    app: Akadze, table: Table, serve: Serve, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    served = await serve()
    code = {"deadlock": "40P01", "serialization": "40001", "lock timeout": "55P03", "read only": "25006"}[kind]
    # A trigger lets the next three claims end with that error, as the server would.
    await table.rows("create sequence public.claims")
    await table.rows(f"""
        create function public.fail() returns trigger language plpgsql as $$
        begin
          if new.state = 'running' and nextval('public.claims') <= 3 then
            raise exception 'for a while' using errcode = '{code}';
          end if;
          return new;
        end $$
    """)
    await table.rows("create trigger fail before update on akadze.jobs for each row execute function public.fail()")
    try:
        row = await table.ended(await enqueue(task))
    finally:
        await table.rows("drop trigger fail on akadze.jobs")
    assert (row["state"], row["run_count"], row["attempt"]) == ("succeeded", 1, 0)
    # Three pauses, each twice as long as the one before and at least half of what it may be.
    assert row["started_at"] - row["created_at"] >= timedelta(seconds=0.175)
    assert served.up
    assert len([warning for warning in warnings_of(caplog) if "out of reach or refuses" in warning]) == 1


async def test_an_error_that_does_not_pass_stops_the_worker_with_its_cause(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    served = await serve()
    await table.rows("alter table akadze.jobs rename to jobs_gone")
    try:
        error = await served.failed()
    finally:
        await table.rows("alter table akadze.jobs_gone rename to jobs")
    assert isinstance(error, psycopg.errors.UndefinedTable)
    assert any("stops" in warning for warning in warnings_of(caplog))
    await serve()
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"


async def test_a_worker_does_not_start_on_a_database_that_has_not_been_migrated(
    app: Akadze, empty_database_url: str
) -> None:
    unmigrated = Akadze(database_url=empty_database_url)
    unmigrated.register(_nothing, name="task")
    with pytest.raises(AkadzeError, match="akadze migrate"):
        await Worker(unmigrated).serve(asyncio.Event())
    await unmigrated.aclose()


async def _nothing() -> None:
    pass


async def test_a_worker_that_cannot_connect_at_its_start_says_so(proxy: Proxy, distant: Akadze) -> None:
    distant.register(_nothing, name="task")
    proxy.cut()
    with pytest.raises((psycopg.OperationalError, DBAPIError)):
        await asyncio.wait_for(Worker(distant).serve(asyncio.Event()), 30)


async def test_a_value_that_the_database_refuses_fails_its_own_job_only(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()

    @app.task("task", max_attempts=1)
    async def task(n: int) -> int:
        await release.wait()
        return n

    jobs = await enqueue_many(task, [{"n": n} for n in range(3)])
    # No result of a body gets as far as this; a constraint of somebody's own may.
    await table.rows(f"""
        create function public.refuse() returns trigger language plpgsql as $$
        begin
          if new.id = {jobs[1]} and new.result is not null then
            raise exception 'not this value' using errcode = '22000';
          end if;
          return new;
        end $$
    """)
    await table.rows("create trigger refuse before update on akadze.jobs for each row execute function public.refuse()")
    try:
        served = await serve(slots=3)
        for job_id in jobs:
            await table.in_state(job_id, "running")
        release.set()
        await table.ended(*jobs)
    finally:
        await table.rows("drop trigger refuse on akadze.jobs")
    first, refused, last = await table.jobs(*jobs)
    assert (first["state"], first["result"], last["state"], last["result"]) == ("succeeded", 0, "succeeded", 2)
    assert (refused["state"], refused["error_names"]) == ("failed", ["ResultNotJson"])
    assert served.up
