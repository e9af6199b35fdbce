"""Contract, section 5: when a job runs again: backoff, delays, timeouts."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from akadze import Akadze, Retry, Snooze, current
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


async def test_retry_without_a_delay_and_an_error_use_the_backoff_of_the_task(
    app: Akadze, table: Table, serve: Serve
) -> None:
    asked: list[int] = []

    def policy(attempt: int) -> timedelta:
        asked.append(attempt)
        return timedelta(hours=attempt)

    @app.task("task", backoff=policy)
    async def task() -> None:
        raise Retry if current().job.attempt else ValueError("first")

    job_id = await enqueue(task)
    await serve()
    for attempt in (1, 2):
        await table.until("select attempt = %s from akadze.jobs where id = %s", attempt, job_id)
        wait = await table.value("select run_at - now() from akadze.jobs where id = %s", job_id)
        assert timedelta(hours=attempt, minutes=-1) < wait <= timedelta(hours=attempt)
        await table.rows("update akadze.jobs set run_at = now() where id = %s", job_id)
    assert asked[:2] == [1, 2]


async def test_the_delay_of_a_retry_or_a_snooze_wins_over_the_backoff(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task", backoff=lambda attempt: timedelta(days=9))
    async def task(retry: bool) -> None:
        # What caused them may be as odd as it likes.
        raise (Retry if retry else Snooze)(timedelta(hours=1)) from Odd()

    jobs = [await enqueue(task, {"retry": retry}) for retry in (True, False)]
    await serve()
    for job_id in jobs:
        await table.until("select run_count = 1 and state = 'queued' from akadze.jobs where id = %s", job_id)
        wait = await table.value("select run_at - now() from akadze.jobs where id = %s", job_id)
        assert timedelta(minutes=59) < wait <= timedelta(hours=1)
    retried, snoozed = await table.jobs(*jobs)
    assert (retried["attempt"], retried["snoozes"], retried["error_names"]) == (1, 0, ["Retry"])
    assert (snoozed["attempt"], snoozed["snoozes"], snoozed["error_names"]) == (0, 1, [])


class Odd(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


@pytest.mark.parametrize(("attempt", "least", "most"), [(0, 0.5, 1), (3, 4, 8), (20, 150, 300), (2**31 - 3, 150, 300)])
async def test_the_default_backoff_doubles_up_to_300_s_with_jitter(
    app: Akadze, table: Table, serve: Serve, attempt: int, least: float, most: float
) -> None:
    @app.task("task", max_attempts=2**31 - 1)
    async def task() -> None:
        raise ValueError("again")

    job_id = await enqueue(task)
    await table.rows("update akadze.jobs set attempt = %s", attempt)
    await serve()
    await table.until("select run_count = 1 and state = 'queued' from akadze.jobs where id = %s", job_id)
    row = await table.job(job_id)
    ended = datetime.fromisoformat(row["errors"][0]["at"])
    # The outcome is written a moment after the error.
    assert timedelta(seconds=least) <= row["run_at"] - ended <= timedelta(seconds=most + 2)


def _raises(attempt: int) -> timedelta:
    raise RuntimeError("no curve")


def _exits(attempt: int) -> timedelta:
    sys.exit(1)


def _interrupts(attempt: int) -> timedelta:
    raise KeyboardInterrupt


def _returns_a_number(attempt: int) -> timedelta:
    return 60  # type: ignore[return-value]  # that is the point


@pytest.mark.parametrize("policy", [_raises, _exits, _interrupts, _returns_a_number])
async def test_a_backoff_that_raises_or_returns_no_timedelta_is_replaced_with_a_warning(
    app: Akadze, table: Table, serve: Serve, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("task", backoff=policy)
    async def task() -> None:
        raise ValueError("first")

    job_id = await enqueue(task)
    await serve()
    await table.until("select attempt = 1 and state = 'queued' from akadze.jobs where id = %s", job_id)
    assert await table.value("select run_at - now() < interval '2 s' from akadze.jobs where id = %s", job_id)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"job {job_id}" in warning and "backoff" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("delay", "kept"),
    [(timedelta.max, timedelta(days=365)), (timedelta.min, timedelta(0)), (timedelta(days=365), timedelta(days=365))],
)
async def test_delays_are_kept_within_365_days(
    app: Akadze, table: Table, serve: Serve, delay: timedelta, kept: timedelta
) -> None:
    @app.task("policy", backoff=lambda attempt: delay)
    async def policy() -> None:
        if current().job.run_count == 1:
            raise ValueError("first")

    @app.task("outcome")
    async def outcome(kind: str) -> None:
        if current().job.run_count == 1:
            raise (Retry if kind == "retry" else Snooze)(delay)

    jobs = [
        await enqueue(policy),
        await enqueue(outcome, {"kind": "retry"}),
        await enqueue(outcome, {"kind": "snooze"}),
    ]
    await serve()
    for job_id in jobs:
        if kept:
            await table.until("select run_count = 1 and state = 'queued' from akadze.jobs where id = %s", job_id)
            wait = await table.value("select run_at - now() from akadze.jobs where id = %s", job_id)
            assert kept - timedelta(minutes=1) < wait <= kept
        else:
            assert (await table.ended(job_id))["state"] == "succeeded"


async def test_a_run_that_takes_too_long_is_stopped_and_counts_as_an_error(
    app: Akadze, table: Table, serve: Serve
) -> None:
    cancelled: list[float] = []
    backoff = timedelta(seconds=0.3)

    @app.task("task", timeout=timedelta(seconds=0.1), max_attempts=2, backoff=lambda attempt: backoff)
    async def task() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.append(asyncio.get_running_loop().time())

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 2, 2)
    assert row["error_names"] == ["TimeoutError", "TimeoutError"]
    assert all("timeout of 0:00:00.100000" in entry["message"] for entry in row["errors"])
    assert len(cancelled) == 2
    assert cancelled[1] - cancelled[0] >= 0.3 + 0.1


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=60)])
async def test_a_timeout_error_of_the_body_is_an_error_like_any_other(
    app: Akadze, table: Table, serve: Serve, timeout: timedelta | None
) -> None:
    @app.task("task", timeout=timeout, max_attempts=2, backoff=at_once)
    async def task() -> None:
        raise TimeoutError("upstream")

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["run_count"]) == ("failed", 2, 2)
    assert [entry["message"] for entry in row["errors"]] == ["upstream", "upstream"]


async def test_a_run_that_took_too_long_is_an_error_also_if_it_returns(app: Akadze, table: Table, serve: Serve) -> None:
    """It has swallowed its cancellation, or blocked the loop so that nobody could cancel it."""

    @app.task("swallows", timeout=timedelta(seconds=0.1), max_attempts=2, backoff=at_once)
    async def swallows() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        return "done"

    @app.task("blocks", timeout=timedelta(seconds=0.1), max_attempts=2, backoff=at_once)
    async def blocks() -> str:
        time.sleep(0.2)  # noqa: ASYNC251 - on purpose
        return "done"

    # Where the machine is too slow for the block itself, it is tried again.
    @app.task("completes", timeout=timedelta(seconds=0.5), max_attempts=100, backoff=at_once)
    async def completes() -> None:
        async with current().complete_tx():
            pass
        time.sleep(0.6)  # noqa: ASYNC251 - on purpose

    @app.task("snoozes", timeout=timedelta(seconds=0.1), max_attempts=2, backoff=at_once)
    async def snoozes() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        raise Snooze(timedelta(0))

    jobs = [await enqueue(task) for task in (swallows, blocks, snoozes, completes)]
    await serve(slots=1)
    await table.ended(*jobs)
    *late, completed = await table.jobs(*jobs)
    ends = [(row["state"], row["attempt"], row["error_names"], row["result"]) for row in late]
    assert ends == [("failed", 2, ["TimeoutError"] * 2, None)] * 3
    assert (completed["state"], completed["result"]) == ("succeeded", None)
