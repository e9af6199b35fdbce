"""Contract, section 7: a standby takes over in the middle of everything, and the workers go on there by themselves."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy.exc import DBAPIError

import akadze
from akadze import Akadze, DuplicateJob, current
from akadze.errors import RunLost
from tests.families import FULL, few
from tests.faults.breaking import SteadyTable
from tests.faults.replication import Pair, replicating
from tests.faults.runs import Runs, enqueue_persistently
from tests.processes import Starter
from tests.servers import skip_without_programs
from tests.waiting import until, wait_until
from tests.worker.serving import workers
from tests.worker.table import enqueue


@pytest.fixture
def pair() -> Iterator[Pair]:
    skip_without_programs("pg_basebackup")
    with replicating() as pair:
        akadze.sync.migrate(pair.primary_url)
        yield pair


@pytest.fixture
async def app(pair: Pair) -> AsyncIterator[Akadze]:
    app = Akadze(database_url=pair.url)
    yield app
    await app.aclose()


@pytest.fixture
async def table(pair: Pair) -> AsyncIterator[SteadyTable]:
    """The rows where they can be written to."""
    table = await SteadyTable.open(pair.url)
    yield table
    await table.close()


async def test_a_failover_under_load_loses_nothing_that_was_acknowledged(
    pair: Pair, app: Akadze, table: SteadyTable
) -> None:
    await asyncio.to_thread(pair.synchronous)
    runs = Runs()
    task = app.register(runs.body, name="task", max_attempts=1)
    acknowledged: list[str] = []
    enough = asyncio.Event()

    async def produce() -> None:
        number = 0
        while not enough.is_set():
            name = f"{number}"
            try:
                async with app.engine.begin() as connection:
                    await task.using(session=connection, unique_key=name).enqueue(name=name)
            except DuplicateJob:
                pass  # the commit whose answer was lost was there
            except DBAPIError:
                await asyncio.sleep(0.02)
                continue
            acknowledged.append(name)
            number += 1

    async with workers(app, table) as serve:
        served = [await serve(slots=5, heartbeat_ttl=60) for _ in range(2)]
        producing = asyncio.create_task(produce())
        await until(lambda: len(runs.started) > 50)
        await asyncio.to_thread(pair.fail_over)
        ready = len(acknowledged) + 50
        await until(lambda: len(acknowledged) > ready)
        enough.set()
        await producing
        await table.until("select bool_and(state = 'succeeded') from akadze.jobs")
        assert all(one.up for one in served)
        rows = await table.rows("select result #>> '{}' as name, attempt, errors from akadze.jobs")
        assert sorted(row["name"] for row in rows) == sorted(acknowledged)
        assert {(row["attempt"], str(row["errors"])) for row in rows} == {(0, "[]")}
        assert runs.started == dict.fromkeys(acknowledged, 1)
        assert runs.overlaps == []
        assert await table.value("select count(*) = 2 from akadze.workers where heartbeat_at > now() - interval '5 s'")


SOURCE = """
import asyncio, os, time
from akadze import Akadze, current

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])

def note(what):
    # One write to a file that is open for appending is not mixed up with those of other processes.
    with open(os.environ["RUNS"], "a") as file:
        file.write(f"{current().job.id} {what} {os.getpid()} {current().job.run_count}\\n")

@app.task("task", max_attempts=1)
async def task(name: str):
    note("start")
    await asyncio.sleep(0.01)
    note("end")
"""


@FULL
def test_worker_processes_go_on_by_themselves_after_a_failover(pair: Pair, tmp_path: Path) -> None:
    pair.synchronous()
    log = tmp_path / "runs"
    log.touch()
    starter = Starter(tmp_path, pair.url)
    options = ("--slots", "3", "--heartbeat-interval", "200ms", "--heartbeat-ttl", "60s", "--poll-interval", "50ms")
    try:
        processes = [starter(SOURCE, *options, environment={"RUNS": str(log)}) for _ in range(2)]
        acknowledged: list[str] = []
        connection = _connect(pair.url)

        def both_serve() -> bool:
            row = connection.execute("select count(*) as count from akadze.workers").fetchone()
            return row is not None and row["count"] == 2

        wait_until(both_serve)
        failing_at = more = 0
        while not more or len(acknowledged) < more:
            name = f"{len(acknowledged)}"
            try:
                if connection.closed:
                    connection = _connect(pair.url)
                connection.execute(
                    "insert into akadze.jobs (task, args, max_attempts, unique_key)"
                    " values ('task', jsonb_build_object('name', %s::text), 1, %s)"
                    " on conflict (unique_key) where unique_key is not null and state in ('queued', 'running')"
                    " do nothing",
                    [name, name],
                )
            except psycopg.OperationalError:
                connection.close()
                continue
            except psycopg.errors.ReadOnlySqlTransaction:
                connection.close()
                continue
            acknowledged.append(name)
            if not failing_at and len(log.read_text().splitlines()) > 100:
                failing_at = len(acknowledged)
                pair.fail_over()
                more = failing_at + 50

        def all_done() -> bool:
            row = connection.execute("select bool_and(state = 'succeeded') as done from akadze.jobs").fetchone()
            return row is not None and row["done"]

        wait_until(all_done)
        rows = connection.execute("select args ->> 'name' as name, attempt, run_count from akadze.jobs").fetchall()
        # An answer that was lost before the job had ended could not be told from none: its name may be there twice.
        assert {row["name"] for row in rows} == set(acknowledged)
        assert len(rows) <= len(acknowledged) + 1
        assert {row["attempt"] for row in rows} == {0}
        connection.close()
        assert [process.returncode for process in processes] == [None, None]
        for process in processes:
            process.terminate()
        assert [process.wait() for process in processes] == [0, 0]
    finally:
        starter.end()
    lines = [line.split() for line in log.read_text().splitlines()]
    open_runs: dict[str, list[str]] = {}
    for job_id, what, *by in lines:
        if what == "start":
            assert job_id not in open_runs, f"job {job_id} ran twice at once"
            open_runs[job_id] = by
        else:
            assert open_runs.pop(job_id) == by
    assert open_runs == {}
    starts = Counter(line[0] for line in lines if line[1] == "start")
    assert set(starts.values()) == {1}
    assert len({line[2] for line in lines}) == 2


def _connect(url: str) -> psycopg.Connection[dict[str, Any]]:
    def connected() -> psycopg.Connection[dict[str, Any]] | None:
        try:
            return psycopg.connect(url, autocommit=True, row_factory=dict_row)
        except psycopg.OperationalError:
            return None

    return wait_until(connected)


@pytest.fixture
def runs() -> Runs:
    return Runs()


async def test_what_the_standby_never_got_is_lost_together_with_its_rows_and_runs_again(
    pair: Pair, app: Akadze, table: SteadyTable, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """What asynchronous replication means: akadze cannot promise more than the server keeps."""
    caplog.set_level(logging.WARNING, logger="akadze")
    task = app.register(runs.body, name="task", max_attempts=1)
    await table.rows("create table public.orders (name text)")
    repeated = await enqueue(task, {"name": "repeated"})
    await asyncio.to_thread(pair.stop_following)
    async with workers(app, table) as serve:
        served = await serve(slots=5, heartbeat_ttl=60)
        await table.ended(repeated)
        runs.hold("vanished")
        async with app.engine.begin() as connection:
            await connection.exec_driver_sql("insert into public.orders values ('vanished')")
            await task.using(session=connection).enqueue(name="vanished")
        await until(lambda: runs.started["vanished"])

        await asyncio.to_thread(pair.fail_over)
        runs.releases["vanished"].set()

        row = await table.ended(repeated)
        assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 0, 1)
        assert runs.started == {"repeated": 2, "vanished": 1}
        assert list(await table.states()) == [repeated]
        assert await table.value("select count(*) from public.orders") == 0
        await until(lambda: "was not this worker's any more: its outcome is dropped" in caplog.text)
        assert served.up


async def test_a_run_whose_claim_was_lost_in_a_failover_is_not_started_beside_itself(
    pair: Pair, app: Akadze, table: SteadyTable, runs: Runs
) -> None:
    task = app.register(runs.body, name="task", max_attempts=1)
    runs.hold("held")
    held = await enqueue(task, {"name": "held"})
    await asyncio.to_thread(pair.stop_following)
    async with workers(app, table) as serve:
        served = await serve(slots=5, heartbeat_ttl=60)
        await until(lambda: runs.started["held"])
        await asyncio.to_thread(pair.fail_over)
        # Another job shows that the worker claims again, and has seen the queued one.
        await table.ended(await enqueue_persistently(task, "probe"))
        await table.in_state(held, "running")
        runs.releases["held"].set()
        row = await table.ended(held)
        assert (row["state"], row["result"], row["attempt"]) == ("succeeded", "held", 0)
        assert runs.started == {"held": 1, "probe": 1}
        assert served.up
        # Its slot is free again, once: all five can be had.
        runs.hold(*"abcdef")
        for name in "abcdef":
            await enqueue(task, {"name": name})
        await table.until("select count(*) = 5 from akadze.jobs where state = 'running'")
        for release in runs.releases.values():
            release.set()
        await table.until("select bool_and(state = 'succeeded') from akadze.jobs")


async def test_an_outcome_whose_claim_was_lost_in_a_failover_is_written_for_the_next_claim_of_its_job(
    pair: Pair, app: Akadze, table: SteadyTable, runs: Runs
) -> None:
    task = app.register(runs.body, name="task", max_attempts=1)
    runs.hold("held")
    held = await enqueue(task, {"name": "held"})
    await asyncio.to_thread(pair.stop_following)
    async with workers(app, table) as serve:
        served = await serve(slots=5, heartbeat_ttl=60)
        await until(lambda: runs.started["held"])
        await asyncio.to_thread(pair.primary.stop, "immediate")
        # It ends while there is no server, so that the outcome and the next claim go out together.
        runs.releases["held"].set()
        await until(lambda: runs.running["held"] == 0)
        await asyncio.to_thread(pair.fail_over)
        row = await table.ended(held)
        assert (row["state"], row["result"], row["attempt"]) == ("succeeded", "held", 0)
        assert runs.started == {"held": 1}
        assert served.up


@FULL
async def test_a_worker_that_is_quicker_after_a_lost_claim_runs_the_job_as_well_and_one_outcome_is_written(
    pair: Pair, app: Akadze, table: SteadyTable
) -> None:
    releases = [asyncio.Event(), asyncio.Event()]
    owners: list[Any] = []
    ended: list[int] = []

    @app.task("task", max_attempts=1)
    async def task() -> int:
        number = len(owners)
        owners.append(current().job.worker_id)
        await releases[number].wait()
        ended.append(number)
        return number

    app.register(lambda: None, name="probe", queue="of the first")
    job_id = await enqueue(task)
    await asyncio.to_thread(pair.stop_following)
    async with workers(app, table) as serve:
        # Its slot for the job is taken, so it cannot claim it anew.
        first = await serve(queues=["default", "of the first"], slots=1, heartbeat_ttl=60)
        await until(lambda: owners)
        await asyncio.to_thread(pair.fail_over)
        second = await serve(queues=["default"], heartbeat_ttl=60)
        await until(lambda: len(owners) == 2)
        assert owners == [first.id, second.id]
        releases[0].set()
        await until(lambda: ended)
        # What the first run ended with goes out with the claim of this one at the latest.
        await table.ended(await enqueue_persistently(app.tasks["probe"]))
        assert (await table.job(job_id))["state"] == "running"
        releases[1].set()
        row = await table.ended(job_id)
        assert (row["state"], row["result"], row["run_count"], row["attempt"]) == ("succeeded", 1, 1, 0)
        assert (first.up, second.up) == (True, True)


@FULL
@pytest.mark.parametrize("ends", few(["before", "after", "complete_tx"], kept=["complete_tx"]))
async def test_a_job_that_got_the_number_of_a_lost_one_is_not_taken_for_it(
    pair: Pair, app: Akadze, table: SteadyTable, runs: Runs, ends: str
) -> None:
    """Ids of a sequence are handed out again when what was written with them is lost."""
    task = app.register(runs.body, name="task", max_attempts=1)
    refused: list[bool] = []

    @app.task("completes", max_attempts=1)
    async def completes(name: str) -> None:
        await runs.body(name)
        try:
            async with current().complete_tx():
                pass
        except RunLost:
            refused.append(True)
            raise

    runs.hold("lost", "new")
    await asyncio.to_thread(pair.stop_following)
    async with workers(app, table) as serve:
        served = await serve(slots=5, heartbeat_ttl=60)
        lost = await enqueue(completes if ends == "complete_tx" else task, {"name": "lost"})
        await until(lambda: runs.started["lost"])
        await asyncio.to_thread(pair.primary.stop, "immediate")
        if ends == "before":
            runs.releases["lost"].set()
            await until(lambda: runs.running["lost"] == 0)
        await asyncio.to_thread(pair.fail_over)
        await table.rows(f"alter table akadze.jobs alter id restart with {lost}")
        assert await enqueue_persistently(task, "new") == lost
        await until(lambda: runs.started["new"])
        runs.releases["lost"].set()
        await until(lambda: runs.running["lost"] == 0)
        if ends == "complete_tx":
            await until(lambda: refused)
        # A cycle has passed when another job is through.
        await table.ended(await enqueue(task, {"name": "probe"}))
        assert (await table.job(lost))["state"] == "running"
        runs.releases["new"].set()
        row = await table.ended(lost)
        assert (row["state"], row["result"], row["run_count"], row["errors"]) == ("succeeded", "new", 1, [])
        assert served.up


async def test_jobs_are_not_claimed_by_a_worker_whose_row_was_lost_in_a_failover_before_it_is_there_again(
    pair: Pair, app: Akadze, table: SteadyTable, runs: Runs
) -> None:
    """Without the row, another worker would take the jobs back as those of a lost one."""
    task = app.register(runs.body, name="task", max_attempts=1)
    runs.hold("held")
    held = await enqueue(task, {"name": "held"})
    await asyncio.to_thread(pair.stop_following)
    other = Akadze(database_url=pair.url)

    @other.task("other")
    async def nothing() -> None:
        pass

    async with workers(app, table) as serve:
        first = await serve(slots=5, heartbeat_interval=3, heartbeat_ttl=60)
        watcher = await serve(other, heartbeat_interval=0.05, heartbeat_ttl=60)
        await until(lambda: runs.started["held"])
        await asyncio.to_thread(pair.fail_over)
        await table.in_state(held, "running", "failed")
        await table.until("select count(*) = 2 from akadze.workers")
        runs.releases["held"].set()
        row = await table.ended(held)
        assert (row["state"], row["attempt"], row["errors"]) == ("succeeded", 0, [])
        assert runs.started == {"held": 1}
        assert first.up
        assert watcher.up
    await other.aclose()
