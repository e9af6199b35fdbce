"""Contract, section 7: the network between a worker and its server fails, one connection at a time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from akadze import Akadze, AkadzeError, DuplicateJob, Worker, current
from akadze._worker.wakeup import _LOST
from tests.faults.wires import Wire, Wires, open_wires
from tests.waiting import until
from tests.worker.serving import Serve, workers
from tests.worker.table import Table, enqueue, enqueue_many

#: Sent by each duty of a worker on its own connection.
CLAIMING = b"run_count = j.run_count + 1"
BEATING = b"insert into akadze.workers"
LISTENING = b"listen akadze"


@pytest.fixture
async def wires(database_url: str) -> AsyncIterator[Wires]:
    async with open_wires(database_url) as wires:
        yield wires


@pytest.fixture
async def near(database_url: str) -> AsyncIterator[Akadze]:
    """An app that meets the database directly, to enqueue with."""
    app = Akadze(database_url=database_url)
    yield app
    await app.aclose()


@pytest.fixture
async def app(wires: Wires) -> AsyncIterator[Akadze]:
    """An app that meets the database through the proxy."""
    app = Akadze(database_url=wires.url, retention=timedelta(days=1), grace=timedelta(hours=2))
    yield app
    await app.aclose()


@pytest.fixture
async def serve(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    async with workers(app, table) as serve:
        yield serve


class Runs:
    """Bodies that count their runs and wait for their release."""

    def __init__(self) -> None:
        self.started: Counter[int] = Counter()
        self.ended: list[float] = []
        self.release = asyncio.Event()

    async def body(self) -> None:
        self.started[current().job.id] += 1
        try:
            await self.release.wait()
        finally:
            self.ended.append(time.time())


@pytest.fixture
async def runs(app: Akadze) -> Runs:
    runs = Runs()
    app.register(runs.body, name="task", max_attempts=1)
    return runs


async def add(table: Table, count: int = 1, **columns: Any) -> list[int]:
    names = ", ".join(["task", "max_attempts", *columns])
    values = ", ".join(["'task'", "1", *["%s"] * len(columns)])
    rows = await table.rows(
        f"insert into akadze.jobs ({names}) select {values} from generate_series(1, %s) returning id",
        *columns.values(),
        count,
    )
    return [row["id"] for row in rows]


async def ran_once(table: Table, runs: Runs, jobs: list[int]) -> None:
    """Wait until the jobs have succeeded, each by one run of its body and without an attempt spent."""
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["attempt"], str(row["errors"])) for row in rows} == {("succeeded", 0, "[]")}
    assert {job_id: runs.started[job_id] for job_id in jobs} == dict.fromkeys(jobs, 1)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_enqueue_whose_commit_was_never_answered_is_there_once(
    app: Akadze, wires: Wires, table: Table, colour: str
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    def send() -> None:
        with app.sync_engine.begin() as connection:
            task.using(session=connection, unique_key="order 7").enqueue()

    async def send_async() -> None:
        async with app.engine.begin() as connection:
            await task.using(session=connection, unique_key="order 7").enqueue()

    async def sent() -> None:
        await (send_async() if colour == "async" else asyncio.to_thread(send))

    wires.lose_answer(lambda wire, chunk: b"COMMIT" in chunk and b"akadze.jobs" in wire.sent)
    sending = asyncio.create_task(sent())
    await table.until("select count(*) = 1 from akadze.jobs")
    (await until(lambda: wires.lost)).cut()
    with pytest.raises(DBAPIError):
        await sending
    # The caller cannot know; with a key it may simply try again.
    with pytest.raises(DuplicateJob):
        await sent()
    assert await table.value("select count(*) from akadze.jobs") == 1


async def test_jobs_are_found_by_polling_while_the_listening_connection_is_dead_in_silence(
    wires: Wires, table: Table, serve: Serve, runs: Runs, near: Akadze
) -> None:
    runs.release.set()
    await serve(poll_interval=0.3)
    (listener,) = await until(lambda: wires.carrying(LISTENING))
    await table.until("select bool_and(sleeping) from akadze.workers")
    listener.black_hole()
    task = near.register(runs.body, name="task", max_attempts=1)
    jobs = [await enqueue(task) for _ in range(3)]
    await ran_once(table, runs, jobs)
    late = max(row["started_at"] - row["created_at"] for row in await table.jobs(*jobs))
    assert late < timedelta(seconds=_LOST)  # nobody can have found out yet that the listener is dead


async def test_a_listening_connection_that_died_in_silence_is_found_out_and_replaced(
    wires: Wires, table: Table, serve: Serve, runs: Runs, near: Akadze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.wakeup._TEST_EVERY", 0.3)
    monkeypatch.setattr("akadze._worker.wakeup._LOST", 0.5)
    runs.release.set()
    await serve(poll_interval=600)
    (listener,) = await until(lambda: wires.carrying(LISTENING))
    await table.until("select bool_and(sleeping) from akadze.workers")
    listener.black_hole()
    await until(lambda: len(wires.carrying(LISTENING)) == 2)
    task = near.register(runs.body, name="task", max_attempts=1)
    # Without a notification the worker would look again in a minute at the soonest.
    await ran_once(table, runs, [await enqueue(task)])


async def test_a_heartbeat_whose_connection_swallows_it_goes_on_over_another(
    wires: Wires, table: Table, serve: Serve, runs: Runs
) -> None:
    jobs = await add(table)
    served = await serve(heartbeat_ttl=3)
    await until(lambda: runs.started)
    (beating,) = wires.carrying(BEATING)
    beating.black_hole()
    swallowed = await table.value("select heartbeat_at from akadze.workers")
    await table.until("select heartbeat_at > %s + interval '500 ms' from akadze.workers", swallowed)
    assert served.up
    runs.release.set()
    await ran_once(table, runs, jobs)


async def test_a_worker_that_cannot_beat_stops_in_time_and_hands_its_jobs_back_where_it_still_can(
    wires: Wires, table: Table, serve: Serve, runs: Runs
) -> None:
    (job_id,) = await add(table)
    served = await serve(heartbeat_interval=0.1, heartbeat_ttl=1)
    await until(lambda: runs.started)
    (beating,) = wires.carrying(BEATING)
    wires.swallows_new = True
    beating.black_hole()
    last = await table.value("select extract(epoch from heartbeat_at) from akadze.workers")
    error = await served.failed()
    assert isinstance(error, AkadzeError)
    assert "no heartbeat of this worker succeeded within 1 s" in str(error)
    assert runs.ended[0] - float(last) < 1.0 + 0.4
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["errors"]) == ("queued", 0, 1, [])


async def test_a_worker_whose_heartbeat_connection_has_died_since_the_last_beat_leaves_no_row_at_its_stop(
    wires: Wires, table: Table, serve: Serve, runs: Runs
) -> None:
    served = await serve(heartbeat_interval=20, heartbeat_ttl=60)
    (beating,) = wires.carrying(BEATING)
    beating.cut()
    await served.stop()
    assert await table.value("select count(*) from akadze.workers") == 0


@pytest.mark.parametrize("how", [Wire.end_answers, Wire.end_requests], ids=lambda how: how.__name__)
async def test_a_worker_whose_claiming_connection_is_half_dead_goes_on_over_another(
    wires: Wires, table: Table, serve: Serve, runs: Runs, how: Any
) -> None:
    running = await add(table, 2)
    served = await serve(slots=4, heartbeat_ttl=1.5)
    await until(lambda: len(runs.started) == 2)
    (claiming,) = wires.carrying(CLAIMING)
    how(claiming)
    more = await add(table, 4)
    runs.release.set()
    await ran_once(table, runs, [*running, *more])
    assert served.up


async def test_a_slow_network_slows_a_worker_down_and_does_nothing_else(
    wires: Wires, table: Table, serve: Serve, runs: Runs
) -> None:
    wires.delay = 0.02
    runs.release.set()
    await table.rows("insert into akadze.limits (key, max_running) values ('k', 2)")
    jobs = await add(table, 20)
    limited = await add(table, 10, limit_key="k")
    served = await serve(slots=5)
    await ran_once(table, runs, [*jobs, *limited])
    assert served.up


async def test_a_beat_whose_answer_is_lost_is_sent_again(wires: Wires, table: Table, serve: Serve, runs: Runs) -> None:
    jobs = await add(table)
    served = await serve()
    await until(lambda: runs.started)
    wires.lose_answer(lambda wire, _: BEATING in wire.sent)
    (await until(lambda: wires.lost)).cut()
    last = await table.value("select now()")
    await table.until("select heartbeat_at > %s from akadze.workers", last)
    runs.release.set()
    await ran_once(table, runs, jobs)
    assert served.up


async def test_a_fire_whose_commit_was_never_answered_is_not_fired_again(
    app: Akadze, wires: Wires, table: Table, serve: Serve
) -> None:
    calls: list[int] = []

    @app.periodic("hourly", every=timedelta(hours=1))
    async def hourly() -> None:
        calls.append(current().job.id)

    wires.lose_answer(lambda wire, chunk: b"COMMIT" in chunk and b"insert into akadze.periodic_runs" in wire.sent)
    await serve()
    await table.until("select count(*) > 0 from akadze.periodic_runs")
    (await until(lambda: wires.lost)).cut()
    # The next pass has come by when it has looked at the clock on a new connection.
    await until(lambda: [wire for wire in wires.carrying(b"clock_timestamp()) * 1000000") if wire is not wires.lost])
    await table.ended(*[row["job_id"] for row in await table.rows("select job_id from akadze.periodic_runs")])
    jobs = [row["id"] for row in await table.rows("select id from akadze.jobs order by id")]
    assert jobs == [row["job_id"] for row in await table.rows("select job_id from akadze.periodic_runs order by slot")]
    assert sorted(calls) == jobs


async def test_a_rescue_whose_commit_was_never_answered_spends_one_attempt(
    wires: Wires, table: Table, serve: Serve, runs: Runs
) -> None:
    runs.release.set()
    jobs = await add(table, 3)
    await table.rows("update akadze.jobs set max_attempts = 5")
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=60), *jobs)
    wires.lose_answer(lambda wire, chunk: b"COMMIT" in chunk and b"WorkerLost" in wire.sent)
    await serve(slots=3)
    await table.until("select bool_and(attempt = 1) from akadze.jobs")
    (await until(lambda: wires.lost)).cut()
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["attempt"], row["run_count"]) for row in rows} == {("succeeded", 1, 2)}
    assert {tuple(row["error_names"]) for row in rows} == {("WorkerLost",)}


async def test_a_body_whose_block_is_swallowed_ends_with_its_timeout(
    app: Akadze, wires: Wires, table: Table, serve: Serve
) -> None:
    await table.rows("create table public.written (number integer)")

    @app.task("writes", max_attempts=2, timeout=timedelta(seconds=1), backoff=lambda _: timedelta(0))
    async def writes() -> None:
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql("insert into public.written values (1)")
            if current().job.run_count == 1:
                (wire,) = wires.carrying(b"public.written")
                wire.black_hole()

    served = await serve()
    row = await table.ended(await enqueue(writes))
    assert (row["state"], row["attempt"], row["error_names"]) == ("succeeded", 1, ["TimeoutError"])
    assert await table.value("select count(*) from public.written") == 1
    assert served.up


async def test_a_stop_does_not_wait_for_a_server_that_swallows_the_first_connection(
    app: Akadze, wires: Wires, runs: Runs
) -> None:
    wires.swallows_new = True
    stop = asyncio.Event()
    serving = asyncio.create_task(Worker(app).serve(stop))
    await until(lambda: wires.wires)
    stop.set()
    await asyncio.wait_for(serving, 15)
    assert runs.started == {}


@pytest.mark.heavy
async def test_connections_that_are_cut_at_random_lose_no_job_and_spend_no_attempt(
    wires: Wires, table: Table, serve: Serve, runs: Runs, near: Akadze, full: bool
) -> None:
    runs.release.set()
    task = near.register(runs.body, name="task", max_attempts=1)
    jobs = await enqueue_many(task, [{}] * (3000 if full else 300))
    # A lease that ends only if beats fail for good: on a busy machine many in a row may meet a cut.
    served = await serve(slots=5, heartbeat_ttl=60)
    number = 0
    while await table.value("select count(*) > 0 from akadze.jobs where state in ('queued', 'running')"):
        # Each wire in its turn, whatever it is in the middle of.
        number += 7
        wires.wires[number % len(wires.wires)].cut()
        await asyncio.sleep(0.05)
        assert served.up
    rows = await table.jobs(*jobs)
    assert {(row["state"], row["attempt"], str(row["errors"])) for row in rows} == {("succeeded", 0, "[]")}
    assert {runs.started[job_id] for job_id in jobs} == {1}
    assert served.up
