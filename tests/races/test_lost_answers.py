"""Contract, section 7: the connection breaks after a commit of the server, and the worker never gets the answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from akadze import Akadze, Snooze, current
from akadze._worker.exchange import Exchange
from tests.claims.clients import Watcher
from tests.claims.fixtures import Connect
from tests.claims.line import Line
from tests.races.proxy import Link, Proxy, open_proxy
from tests.waiting import until
from tests.worker.serving import Serve, Served, workers
from tests.worker.table import Table, open_table

#: Found in what goes over the wire.
_NAME = "task whose answer is lost"


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with open_proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def app(proxy: Proxy) -> AsyncIterator[Akadze]:
    """An app that reaches its database through the proxy."""
    app = Akadze(database_url=proxy.url)
    yield app
    await app.aclose()


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[Table]:
    async with open_table(database_url) as table:
        yield table


@pytest.fixture
async def serve(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    """Start workers that sleep already: none of their first claims, which find nothing, is to be lost."""

    async def start_quietly(**options: Any) -> Served:
        worker = await start(**options)
        await table.until("select bool_and(w.sleeping) from akadze.workers w")
        await asyncio.sleep(0.2)  # it looks once more
        return worker

    async with workers(app, table) as start:
        yield start_quietly


@pytest.fixture(params=["direct", "limited", "hooks"])
def kind(request: pytest.FixtureRequest, app: Akadze) -> str:
    """How the worker's exchanges are made."""
    if request.param == "hooks":
        app.hooks.on_transition.append(lambda *_: None)
    return str(request.param)


class Runs:
    """Counts the runs of bodies."""

    def __init__(self) -> None:
        self.started: Counter[int] = Counter()
        self.release = asyncio.Event()

    async def body(self) -> None:
        self.started[current().job.id] += 1
        await self.release.wait()


@pytest.fixture
async def runs() -> Runs:
    return Runs()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="akadze")
    return caplog


def messages(warnings: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.getMessage() for record in warnings.records if about in record.getMessage()]


def claim_of(worker: Served, kind: str) -> Any:
    """Pick the claim; with hooks, the commit after a claim that has brought a job."""
    worker_id, task = str(worker.id).encode(), _NAME.encode()
    if kind == "hooks":
        return lambda link, data: b"COMMIT" in data and task in link.received
    return lambda link, data: worker_id in data and task in data


def finish_of(state: str, kind: str) -> Any:
    """Pick the exchange that writes an outcome; with hooks, its commit."""
    outcome = f'"state":"{state}"'.encode()

    def found(link: Link, data: bytes) -> bool:
        if kind == "hooks":
            return b"COMMIT" in data and outcome in link.sent.replace(b'": "', b'":"')
        return outcome in data.replace(b'": "', b'":"')

    return found


async def cut(proxy: Proxy) -> None:
    link = await until(lambda: proxy.lost)
    link.cut()


async def test_a_job_whose_claim_was_never_answered_is_handed_back_and_runs(
    table: Table, serve: Serve, line: Line, proxy: Proxy, app: Akadze, runs: Runs, kind: str, warnings: Any
) -> None:
    app.register(runs.body, name=_NAME)
    if kind == "limited":
        await line.limit("k", 1, max_starts=5, window=60)
    runs.release.set()
    worker = await serve()
    proxy.lose_answer(claim_of(worker, kind))

    job_id = await line.add_one(task=_NAME, key="k", max_attempts=1)
    await table.in_state(job_id, "running")
    await cut(proxy)

    job = await table.ended(job_id)
    assert (job["state"], job["run_count"], job["attempt"], job["errors"]) == ("succeeded", 2, 0, [])
    assert runs.started == {job_id: 1}
    assert len(messages(warnings, "was claimed in an answer that was lost")) == 1


async def test_a_job_that_its_body_finishes_while_the_worker_looks_is_not_taken_for_a_lost_one(
    table: Table, serve: Serve, line: Line, app: Akadze, warnings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads what runs, then complete_tx commits and the body ends, then it compares."""
    read, release = Exchange.runs_of_worker, asyncio.Event()

    async def body() -> None:
        await release.wait()
        async with current().complete_tx():
            pass

    async def read_early(exchange: Exchange) -> set[tuple[int, int]]:
        found = await read(exchange)
        if found and not release.is_set():
            release.set()
            await until(lambda: not worker.worker._serving._loop.runs)
        return found

    app.register(body, name=_NAME)
    monkeypatch.setattr(Exchange, "runs_of_worker", read_early)
    worker: Any = await serve()
    job_id = await line.add_one(task=_NAME)
    job = await table.ended(job_id)
    await worker.stop()
    assert (job["state"], job["run_count"]) == ("succeeded", 1)
    assert messages(warnings, f"job {job_id}") == []


async def test_a_claim_that_never_reached_the_server_is_made_again(
    table: Table, serve: Serve, line: Line, proxy: Proxy, app: Akadze, runs: Runs, kind: str
) -> None:
    app.register(runs.body, name=_NAME)
    if kind == "limited":
        await line.limit("k", 1)
    runs.release.set()
    worker = await serve()
    proxy.lose_answer(claim_of(worker, kind), delivers=False)

    job_id = await line.add_one(task=_NAME, key="k", max_attempts=1)
    await cut(proxy)

    job = await table.ended(job_id)
    assert (job["state"], job["run_count"], job["attempt"]) == ("succeeded", 1, 0)
    assert runs.started == {job_id: 1}


async def test_a_job_whose_finish_was_never_answered_does_not_run_again(
    table: Table, serve: Serve, line: Line, proxy: Proxy, app: Akadze, runs: Runs, kind: str, warnings: Any
) -> None:
    app.register(runs.body, name=_NAME)
    if kind == "limited":
        await line.limit("k", 100)
    jobs = await line.add(20, task=_NAME, key="k", max_attempts=1)
    await serve(slots=30)
    await until(lambda: len(runs.started) == 20)

    proxy.lose_answer(finish_of("succeeded", kind))
    runs.release.set()
    await until(lambda: table.value("select bool_or(state = 'succeeded') from akadze.jobs"))
    await cut(proxy)
    await table.ended(*jobs)
    # The next job shows that the worker has settled the outcomes that it had in doubt.
    probe = await line.add_one(task=_NAME)
    await table.ended(probe)

    assert {(job["state"], job["run_count"]) for job in await table.jobs(*jobs)} == {("succeeded", 1)}
    assert runs.started == dict.fromkeys([*jobs, probe], 1)
    assert messages(warnings, "not this worker's any more") == []


async def test_a_job_that_was_put_back_and_claimed_again_in_an_unanswered_exchange_runs_once_more(
    table: Table, serve: Serve, line: Line, proxy: Proxy, app: Akadze, kind: str, warnings: Any
) -> None:
    calls: list[int] = []

    @app.task(_NAME)
    async def work() -> None:
        calls.append(current().job.run_count)
        if len(calls) == 1:
            raise Snooze(timedelta(0))

    if kind == "limited":
        await line.limit("k", 1)
    await serve()
    proxy.lose_answer(finish_of("queued", kind))

    job_id = await line.add_one(task=_NAME, key="k", max_attempts=1)
    await until(lambda: table.value("select snoozes = 1 from akadze.jobs"))
    await cut(proxy)

    job = await table.ended(job_id)
    assert (job["state"], job["snoozes"], job["attempt"]) == ("succeeded", 1, 0)
    assert calls == [1, job["run_count"]]
    assert messages(warnings, "not this worker's any more") == []


async def test_a_claim_that_commits_after_the_worker_has_come_back_is_found_later(
    table: Table, serve: Serve, line: Line, proxy: Proxy, app: Akadze, runs: Runs, connect: Connect, watcher: Watcher
) -> None:
    """The server goes on with what it was sent, long after the worker has lost the connection."""
    app.register(runs.body, name=_NAME)
    await line.limit("k", 1)
    runs.release.set()
    worker = await serve(heartbeat_interval=0.1)
    caller = await connect()

    async with caller.transaction():
        await caller.sql("select from akadze.limits for update")
        job_id = await line.add_one(task=_NAME, key="k", max_attempts=1)

        async def waiting(number: int) -> bool:
            return await watcher.count() >= number

        await until(lambda: waiting(1))
        proxy.carrying(str(worker.id).encode(), _NAME.encode()).cut()
        # The worker is back and has looked for jobs of its own; its next claim waits behind the one that was cut off.
        await until(lambda: waiting(2))

    job = await table.ended(job_id)
    assert (job["state"], job["run_count"], job["attempt"]) == ("succeeded", 2, 0)
    assert runs.started == {job_id: 1}


async def test_a_complete_tx_whose_commit_was_never_answered_does_not_run_again(
    table: Table, serve: Serve, line: Line, proxy: Proxy, app: Akadze
) -> None:
    await table.rows("create table public.written (number integer)")
    calls: list[int] = []

    @app.task(_NAME)
    async def work() -> None:
        calls.append(current().job.id)
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql("insert into public.written values (1)")

    await serve()
    proxy.lose_answer(lambda link, data: b"COMMIT" in data and b"public.written" in link.sent)

    job_id = await line.add_one(task=_NAME)
    await table.ended(job_id)
    await cut(proxy)
    probe = await line.add_one(task=_NAME)
    await table.ended(probe)

    job = await table.job(job_id)
    assert (job["state"], job["run_count"], job["errors"]) == ("succeeded", 1, [])
    assert calls == [job_id, probe]
    assert await table.value("select count(*) from public.written") == 2
