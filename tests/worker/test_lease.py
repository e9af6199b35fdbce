"""Contract, section 7: the heartbeat and the lease of a worker on its jobs."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import statistics
import time
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from akadze import Akadze, AkadzeError, current, list_workers
from akadze._worker.heartbeat import Heartbeat
from akadze._worker.outage import Outages
from tests.waiting import until
from tests.worker.proxy import proxied
from tests.worker.serving import Serve
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many

# Of a lease that is meant to end.
SHORT = {"heartbeat_interval": 0.1, "heartbeat_ttl": 1.0}


async def test_a_worker_registers_itself_with_its_own_ttl_and_beats(app: Akadze, table: Table, serve: Serve) -> None:
    async def body() -> None:
        pass

    app.register(body, name="a", queue="a")
    app.register(body, name="b", queue="b")
    served = await serve(heartbeat_interval=0.05, heartbeat_ttl=7)
    (row,) = await table.rows("select * from akadze.workers")
    assert (row["id"], row["hostname"], row["pid"]) == (served.id, socket.gethostname(), os.getpid())
    assert (row["queues"], row["heartbeat_ttl"]) == (["a", "b"], timedelta(seconds=7))
    await table.until("select heartbeat_at > %s from akadze.workers", row["heartbeat_at"])
    await served.stop()
    assert await list_workers(app.engine) == ()


async def test_beats_are_an_interval_apart_whatever_runs(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("long")
    async def long() -> None:
        await asyncio.sleep(600)

    await enqueue_many(long, [{}] * 5)
    await serve(heartbeat_interval=0.4, heartbeat_ttl=30, slots=5, shutdown_timeout=0)
    await table.until("select count(*) = 5 from akadze.jobs where state = 'running'")
    beats = [await table.value("select heartbeat_at from akadze.workers")]
    for _ in range(5):
        await table.until("select heartbeat_at > %s from akadze.workers", beats[-1])
        beats.append(await table.value("select heartbeat_at from akadze.workers"))
    # A beat that comes late to the server is followed by one that seems early: most of them tell.
    assert statistics.median(later - one for one, later in pairwise(beats)) > timedelta(seconds=0.35)


async def test_a_worker_with_a_long_interval_is_silent_meanwhile(app: Akadze, table: Table, serve: Serve) -> None:
    app.register(_nothing, name="task")
    await serve(heartbeat_interval=5, heartbeat_ttl=30)
    await table.until("select now() - heartbeat_at > interval '1.5 s' from akadze.workers")


async def test_a_healthy_worker_keeps_its_jobs_for_many_times_the_ttl(app: Akadze, table: Table, serve: Serve) -> None:
    runs: list[tuple[int, object]] = []

    @app.task("long")
    async def long() -> None:
        runs.append((current().job.id, current().job.worker_id))
        await asyncio.sleep(2.5)

    jobs = await enqueue_many(long, [{}] * 2)
    first = await serve(slots=4, heartbeat_interval=0.05, heartbeat_ttl=0.8)
    for job_id in jobs:
        await table.in_state(job_id, "running")
    await serve(slots=4, heartbeat_interval=0.05, heartbeat_ttl=0.8)
    await table.ended(*jobs)
    assert sorted(runs) == [(job_id, first.id) for job_id in jobs]
    assert {(row["state"], row["run_count"], row["attempt"]) for row in await table.jobs(*jobs)} == {
        ("succeeded", 1, 0)
    }


async def test_a_lease_counts_from_the_start_of_the_last_good_beat_by_a_clock_that_nobody_sets(
    app: Akadze, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no other clock for it to read.
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("akadze._worker.heartbeat.time", SimpleNamespace(monotonic=lambda: clock.now))

    server = SimpleNamespace(answers=True)

    async def rows(*_: Any, **__: Any) -> Any:
        clock.now += 4
        if not server.answers:
            raise OSError("no answer")
        return [{"id": 1}]

    server.rows = rows

    heartbeat = Heartbeat(
        app,
        uuid4(),
        ["default"],
        interval=timedelta(seconds=5),
        ttl=timedelta(seconds=30),
        rewritten=lambda: None,
        outages=Outages(),
    )
    monkeypatch.setattr(heartbeat, "_held", server)
    await heartbeat.register()
    assert heartbeat.left == 26
    clock.now += 10
    await heartbeat.step()
    assert heartbeat.left == 26
    server.answers = False
    with pytest.raises(OSError, match="no answer"):
        await heartbeat.step()
    assert heartbeat.left == 22


async def test_a_step_that_hangs_does_not_delay_the_heartbeat(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    served = await serve(**SHORT)
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        await blocker.execute("lock table akadze.jobs in access exclusive mode")
        # Every look of the loop at the jobs hangs now.
        start = await table.value("select now()")
        await table.until("select heartbeat_at > %s from akadze.workers", start + timedelta(seconds=1.5))
        assert served.up
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    assert served.up


async def test_a_row_of_a_worker_that_somebody_deleted_is_written_again(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    served = await serve(heartbeat_interval=0.05)
    await table.rows("delete from akadze.workers")
    await table.until("select count(*) = 1 from akadze.workers where id = %s", served.id)
    assert any("written again" in record.getMessage() for record in caplog.records)


async def test_a_worker_whose_heartbeats_fail_stops_its_jobs_and_hands_them_back(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    ended: list[float] = []

    @app.task("tick")
    async def tick() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(time.time())

    job_id = await enqueue(tick)
    served = await serve(**SHORT)
    await table.in_state(job_id, "running")
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        await blocker.execute("select from akadze.workers for update")
        last = await table.value("select extract(epoch from heartbeat_at) from akadze.workers")
        await until(lambda: ended)
    error = await served.failed()
    assert isinstance(error, AkadzeError)
    assert "no heartbeat of this worker succeeded within 1 s" in str(error)
    # By its own clock, which it read before the beat; the rest is what a busy machine needs to notice.
    assert ended[0] - float(last) < 1.0 + 0.3
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["run_count"], row["errors"]) == ("queued", 0, 1, [])


async def test_a_job_does_not_run_twice_at_once_when_a_lease_ends(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    events: list[tuple[int, str]] = []

    @app.task("tick")
    async def tick() -> None:
        run = current().job.run_count
        events.append((run, "start"))
        try:
            if run == 1:
                await asyncio.sleep(600)
        finally:
            events.append((run, "end"))

    job_id = await enqueue(tick)
    first = await serve(**SHORT)
    await table.in_state(job_id, "running")
    await serve(heartbeat_interval=0.02, heartbeat_ttl=5, poll_interval=0.02)
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        await blocker.execute("select from akadze.workers where id = %s for update", [first.id])
        row = await table.ended(job_id)
    assert isinstance(await first.failed(), AkadzeError)
    assert events == [(1, "start"), (1, "end"), (2, "start"), (2, "end")]
    assert (row["state"], row["run_count"]) == ("succeeded", 2)


async def test_an_idle_worker_that_loses_its_lease_complains_of_no_outcomes(
    database_url: str, serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_WRITE", 0.5)
    async with proxied(database_url) as proxy:
        app = Akadze(database_url=proxy.url)
        app.register(lambda: None, name="nothing")
        served = await serve(app, **SHORT)
        proxy.freeze()
        error = await served.failed()
        proxy.restore()
        await app.aclose()
    assert isinstance(error, AkadzeError)
    assert "no heartbeat of this worker succeeded" in str(error)
    assert [record.getMessage() for record in caplog.records if "outcomes" in record.getMessage()] == []


@pytest.mark.parametrize("how", ["freeze", "cut"])
async def test_a_worker_that_the_database_does_not_answer_stops_its_jobs_when_its_lease_ends(
    database_url: str,
    table: Table,
    serve: Serve,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_WRITE", 0.5)
    started = asyncio.Event()
    ended: list[float] = []

    async with proxied(database_url) as proxy:
        app = Akadze(database_url=proxy.url)

        @app.task("tick")
        async def tick() -> None:
            started.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(time.time())

        job_id = await enqueue(tick)
        served = await serve(app, **SHORT)
        await until(started.is_set)
        getattr(proxy, how)()
        last = await table.value("select extract(epoch from heartbeat_at) from akadze.workers")
        assert isinstance(await served.failed(), AkadzeError)
        assert ended[0] - float(last) < 1.0 + 0.4
        assert (await table.job(job_id))["state"] == "running"
        assert any("could not write 1 outcomes" in record.getMessage() for record in caplog.records)
        proxy.restore()
        await app.aclose()
    # Nobody beats for it any more: the next worker takes the job back.
    app = Akadze(database_url=database_url)
    app.register(_nothing, name="tick")
    await serve(app)
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["error_names"]) == ("succeeded", 1, ["WorkerLost"])
    await app.aclose()


async def _nothing() -> None:
    pass


async def test_a_heartbeat_that_hangs_is_tried_again_on_another_connection_before_the_lease_ends(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    app.register(_nothing, name="task")
    served = await serve(heartbeat_interval=0.1, heartbeat_ttl=3)
    waiting = f"select pid {SESSIONS} and wait_event_type = 'Lock' and query like '%%heartbeat_at = now()%%'"
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        # A beat waits for the row now, as one does whose server has gone without a word.
        await blocker.execute("select from akadze.workers for update")
        await table.until(waiting)
        first = await table.value(waiting)
        await table.until(f"{waiting} and pid <> %s", first, timeout=2.5)
    await table.until("select now() - heartbeat_at < interval '0.5 s' from akadze.workers")
    assert served.up


async def test_a_body_that_waits_for_a_silent_database_ends_with_the_lease(
    database_url: str, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg answers the first cancellation by asking the server to stop, and waits as long as nobody answers."""
    ended: list[float] = []
    async with proxied(database_url) as proxy:
        app = Akadze(database_url=proxy.url)

        @app.task("wait")
        async def wait() -> None:
            try:
                async with current().complete_tx() as connection:
                    await connection.execute(text("select pg_sleep(600)"))
            finally:
                ended.append(time.time())

        await enqueue(wait)
        served = await serve(app, **SHORT)
        await table.until("select exists (select from pg_stat_activity where query = 'select pg_sleep(600)')")
        proxy.freeze()
        last = await table.value("select extract(epoch from heartbeat_at) from akadze.workers")
        assert isinstance(await served.failed(), AkadzeError)
        assert len(ended) == 1
        assert ended[0] - float(last) < 1.0 + 0.6
        assert not any("left behind" in record.getMessage() for record in caplog.records)
        proxy.restore()
        await app.aclose()


@pytest.mark.parametrize("when", ["", "while a beat is on its way", "while a beat is answered"])
async def test_a_worker_whose_loop_stood_still_says_so(
    app: Akadze, database_url: str, table: Table, serve: Serve, when: str
) -> None:
    beats = asyncio.Event()
    ttl = 3.0 if when else 1.0
    blocker = psycopg.connect(database_url)

    @app.task("block")
    async def block() -> None:
        if when:
            await beats.wait()
        if "answered" in when:
            blocker.commit()
        time.sleep(1.5 * ttl)  # noqa: ASYNC251 - the mistake that is told of

    with blocker:
        job_id = await enqueue(block)
        served = await serve(heartbeat_interval=0.1, heartbeat_ttl=ttl)
        if when:
            await table.in_state(job_id, "running")
            blocker.execute("select from akadze.workers where id = %s for update", [served.id])
            await table.until("select exists (select from pg_locks where not granted)")
            beats.set()
        error = await served.failed()
    assert f"no heartbeat of this worker succeeded within {ttl:g} s" in str(error)
    said = re.search(r"its event loop stood still for ([0-9.]+) s", str(error))
    assert said is not None
    assert float(said[1]) > 0.5


async def test_a_worker_that_wakes_after_its_lease_starts_no_other_job(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    @app.task("block", priority=1)
    async def block() -> None:
        time.sleep(1.5)  # noqa: ASYNC251 - as if the process had been frozen
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("insert into akadze.jobs (task) select 'other' from generate_series(1, 20)")

    @app.task("other")
    def other() -> None:
        pass

    await enqueue(block)
    claimed = await enqueue_many(other, [{}] * 2)
    served = await serve(heartbeat_interval=0.1, heartbeat_ttl=1, slots=3)
    assert isinstance(await served.failed(), AkadzeError)
    rows = await table.rows("select id, state, run_count, attempt from akadze.jobs order by id")
    assert [tuple(row.values())[1:] for row in rows] == [
        ("succeeded", 1, 0),
        *[("queued", 1, 0)] * len(claimed),
        *[("queued", 0, 0)] * 20,
    ]


async def test_workers_that_wake_after_their_leases_together_take_nothing_from_each_other(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    @app.task("long")
    async def long() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)  # to wind up
            raise

    jobs = await enqueue_many(long, [{}] * 2)
    served = [await serve(heartbeat_interval=0.1, heartbeat_ttl=1) for _ in jobs]
    await table.until("select count(*) = 2 from akadze.jobs where state = 'running'")
    time.sleep(1.5)  # noqa: ASYNC251 - as if the machine had been frozen
    for one in served:
        assert isinstance(await one.failed(), AkadzeError)
    assert {(row["state"], row["run_count"], row["attempt"]) for row in await table.jobs(*jobs)} == {("queued", 1, 0)}
