"""Contract, section 8: bodies that do not stop when their time is over are named."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import psycopg
import pytest

from akadze import Akadze
from akadze._worker.serving import OutcomesLost
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

SOON = timedelta(seconds=0.05)


def warnings(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [
        message
        for record in caplog.records
        if record.levelno == logging.WARNING and about in (message := record.getMessage())
    ]


async def test_a_body_that_swallows_its_timeout_is_named_once_while_it_holds_its_slot(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._bodies._TO_END", 0.1)
    release = asyncio.Event()

    @app.task("stubborn", timeout=SOON, max_attempts=1)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await release.wait()
        return "late"

    job_id = await enqueue(stubborn)
    await serve(slots=1)
    await until(lambda: warnings(caplog, f"job {job_id} of task stubborn"))
    assert (await table.job(job_id))["state"] == "running"
    release.set()
    row = await table.ended(job_id)
    assert (row["state"], row["result"], row["error_names"]) == ("failed", None, ["TimeoutError"])
    [warning] = warnings(caplog, f"job {job_id} of task stubborn still runs")
    assert "after its timeout of 0:00:00.050000" in warning
    assert "keeps its slot" in warning


async def test_a_body_that_heeds_its_timeout_is_not_named(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._bodies._TO_END", 0.2)

    @app.task("task", timeout=SOON, max_attempts=1)
    async def task() -> None:
        await asyncio.sleep(600)

    job_id = await enqueue(task)
    await serve()
    await table.ended(job_id)
    await asyncio.sleep(0.3)  # longer than it would take to be named
    assert warnings(caplog, "still runs") == []


async def test_a_plain_function_that_outlives_its_timeout_is_named_then_and_at_the_stop(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @app.task("plain", timeout=SOON, max_attempts=1)
    def plain() -> None:
        release.wait(30)

    job_id = await enqueue(plain)
    served = await serve()
    await table.ended(job_id)
    [warning] = warnings(caplog, f"job {job_id} of task plain is a plain function")
    assert "goes on in its thread after its timeout of 0:00:00.050000" in warning
    await served.stop()
    release.set()
    [_, warning] = warnings(caplog, f"job {job_id} of task plain is a plain function")
    assert "is left behind in its thread" in warning


async def test_only_plain_functions_that_still_run_are_named_at_the_stop(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @app.task("slow")
    def slow() -> None:
        release.wait(30)

    @app.task("quick", timeout=timedelta(seconds=30))
    def quick() -> None:
        pass

    slow_id, quick_id = await enqueue(slow), await enqueue(quick)
    served = await serve(slots=2, shutdown_timeout=0)
    await table.ended(quick_id)
    await table.in_state(slow_id, "running")
    await served.stop()
    release.set()
    [warning] = warnings(caplog, "left behind")
    assert f"job {slow_id} of task slow is a plain function" in warning
    row = await table.job(slow_id)
    assert (row["state"], row["attempt"]) == ("queued", 0)


async def test_a_claim_that_is_not_answered_at_the_stop_is_told_without_a_word_of_outcomes(
    app: Akadze, table: Table, serve: Serve, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_WRITE", 0.3)
    app.register(lambda: None, name="task")
    served = await serve(poll_interval=0.05)
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("lock table akadze.jobs in access exclusive mode")
        await table.until("select count(*) > 0 from pg_locks where relation = 'akadze.jobs'::regclass and not granted")
        with pytest.raises(OutcomesLost, match=r"did not get the answer to its last exchange .* within 0\.3 s"):
            await served.stop()
