"""Contract, sections 4, 5 and 11: exceptions and hooks of every kind: each is recorded, and none stops a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, Retry, Snooze, list_jobs
from akadze.job import Job
from tests.cli.conftest import Cli, cli
from tests.families import FULL
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

__all__ = ["cli"]


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


class E(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code)
        self.detail = detail


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_b090_an_exception_with_a_constructor_of_its_own_is_recorded(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    def plain() -> None:
        raise E(7, "late")

    async def awaited() -> None:
        plain()

    task = app.register(awaited if colour == "async" else plain, name="f", max_attempts=2, backoff=at_once)
    job = await enqueue(task)
    served = await serve()
    row = await table.ended(job)
    assert (row["state"], row["attempt"]) == ("failed", 2)
    assert [(entry["error"], entry["message"]) for entry in row["errors"]] == [("E", "7")] * 2
    assert served.up


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Nothing(NoText):
    __repr__ = NoText.__str__


class Number(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # that is the point


class Untraced(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]  # that is the point
        return None

    @__traceback__.setter
    def __traceback__(self, value: Any) -> None:
        raise AttributeError("no traceback")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


WORDS = "žluťoučký 🐎"
ODD: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError(WORDS),
    "NoText": NoText,
    "Nothing": Nothing,
    "Number": Number,
    "KeyError": lambda: KeyError("bare").with_traceback(None),
    "Untraced": Untraced,
    "Exits": Exits,
}


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_b092_an_exception_that_cannot_be_shown_is_recorded_by_its_class(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    def plain(kind: str) -> None:
        error = ODD[kind]()
        try:
            raise error
        finally:
            if kind == "KeyError":
                error.__traceback__ = None

    async def awaited(kind: str) -> None:
        plain(kind)

    task = app.register(awaited if colour == "async" else plain, name="f", max_attempts=1)
    jobs = [await enqueue(task, {"kind": kind}) for kind in ODD]
    served = await serve(slots=3)
    await table.ended(*jobs)
    rows = await table.jobs(*jobs)
    assert [row["state"] for row in rows] == ["failed"] * len(ODD)
    assert [row["error_names"] for row in rows] == [[kind] for kind in ODD]
    assert rows[0]["errors"][0]["message"] == WORDS
    assert all(isinstance(value, str) for row in rows for entry in row["errors"] for value in entry.values())
    assert served.up


def endless(n: int = 0) -> int:
    return endless(n + 1) + 1


@FULL
async def test_b094_errors_of_any_length_keep_head_and_tail_and_stay_small(
    app: Akadze, table: Table, serve: Serve, cli: Cli
) -> None:
    words = f"head {'x' * 50_000_000} tail"

    async def f(how: str) -> None:
        if how == "recursion":
            endless()
        raise RuntimeError(words)

    task = app.register(f, name="f", max_attempts=50, backoff=at_once)
    jobs = [await enqueue(task, {"how": how}) for how in ("long", "recursion")]
    served = await serve()
    await table.ended(*jobs)

    long, recursion = await table.jobs(*jobs)
    assert [(row["state"], row["attempt"], len(row["errors"])) for row in (long, recursion)] == [("failed", 50, 10)] * 2
    for entry in long["errors"]:
        assert entry["message"].startswith("head x")
        assert entry["message"].endswith("x tail")
        assert len(entry["message"]) <= 2048
    assert set(recursion["error_names"]) == {"RecursionError"}
    assert await table.value("select max(octet_length(cast(errors as text))) < 50000 from akadze.jobs")
    async with app.engine.connect() as connection:
        assert len(await list_jobs(connection, state="failed")) == 2
    assert {row["id"] for row in json.loads(cli("jobs", "list", "--state", "failed", "--json").stdout)} == {*jobs}
    assert served.up


class Once:
    """A hook that raises at its first call, and at that alone, for the moments that it watches."""

    def __init__(self, *states: str) -> None:
        self.states = states
        self.calls = 0

    def __call__(self, *given: Any) -> None:
        if given[-2:] == self.states or not self.states:
            self.calls += 1
            if self.calls == 1:
                raise LookupError("in the hook")


@pytest.mark.parametrize("moment", ["before_run", "after_run", "around_run"])
async def test_b095_an_error_of_a_hook_of_a_run_is_an_error_of_the_run(
    app: Akadze, table: Table, serve: Serve, moment: str
) -> None:
    once = Once()

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        once(job)
        yield

    async def f() -> str:
        return "result"

    getattr(app.hooks, moment).append(around if moment == "around_run" else once)
    job = await enqueue(app.register(f, name="f", max_attempts=2, backoff=at_once))
    served = await serve()
    row = await table.ended(job)
    assert (row["state"], row["attempt"], row["run_count"]) == ("succeeded", 1, 2)
    assert row["error_names"] == ["LookupError"]
    assert once.calls == 2
    assert served.up


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_b095_an_error_of_on_enqueue_is_raised_and_leaves_the_transaction_usable(
    app: Akadze, table: Table, serve: Serve, many: bool
) -> None:
    async def f(n: int) -> int:
        return n

    task = app.register(f, name="f", max_attempts=2, backoff=at_once)
    once = Once()
    app.hooks.on_enqueue.append(once)
    served = await serve()
    async with app.engine.begin() as connection:
        bound = task.using(session=connection)
        with pytest.raises(LookupError):
            await (bound.enqueue_many([{"n": 1}, {"n": 1}]) if many else bound.enqueue(n=1))
        assert await connection.scalar(text("select count(*) from akadze.jobs")) == 0
        await (bound.enqueue_many([{"n": 2}]) if many else bound.enqueue(n=2))
    await table.until("select count(*) = 1 from akadze.jobs where state = 'succeeded'")
    assert await table.rows("select args, attempt from akadze.jobs") == [{"args": {"n": 2}, "attempt": 0}]
    assert served.up


async def test_b095_a_success_that_on_transition_refuses_stays_running_until_its_worker_stops(
    app: Akadze, table: Table, serve: Serve
) -> None:
    async def f(n: int) -> int:
        return n

    task = app.register(f, name="f", max_attempts=2, backoff=at_once)
    app.hooks.on_transition.append(Once("running", "succeeded"))
    served = await serve(slots=1)
    refused = await enqueue(task, {"n": 1})
    await table.until("select run_count = 1 from akadze.jobs where id = %s", refused)
    other = await enqueue(task, {"n": 2})
    # The worker goes on, with its slot free.
    assert (await table.ended(other))["state"] == "succeeded"
    row = await table.job(refused)
    assert (row["state"], row["worker_id"], row["run_count"]) == ("running", served.id, 1)
    assert served.up

    await served.stop()
    assert (await table.job(refused))["state"] == "queued"
    await serve()
    row = await table.ended(refused)
    assert (row["state"], row["result"], row["run_count"], row["attempt"]) == ("succeeded", 1, 2, 0)


async def test_b095_a_refused_success_of_a_worker_that_is_lost_runs_again(
    app: Akadze, table: Table, serve: Serve
) -> None:
    async def f() -> int:
        return 1

    task = app.register(f, name="f", max_attempts=2, backoff=at_once)
    once = Once("running", "succeeded")
    app.hooks.on_transition.append(once)
    served = await serve()
    job = await enqueue(task)
    await until(lambda: once.calls)
    # As if this worker had died: the job is another's now, who beats no more.
    lost = await table.add_worker(ttl=1, silent_for=100)
    await table.rows("update akadze.jobs set worker_id = %s where id = %s", lost, job)
    row = await table.ended(job)
    assert (row["state"], row["run_count"], row["attempt"]) == ("succeeded", 2, 1)
    assert row["error_names"] == ["WorkerLost"]
    assert served.up


class Odd(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be copied")

    __reduce_ex__ = __reduce__  # type: ignore[assignment]
    __copy__ = __deepcopy__ = __reduce__


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_b097_a_retry_or_snooze_may_come_from_any_exception(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    starts: dict[str, list[float]] = {"retry": [], "snooze": []}
    ends: dict[str, float] = {}

    def plain(how: str) -> None:
        starts[how].append(time.monotonic())
        if len(starts[how]) == 1:
            ends[how] = time.monotonic()
            delay = timedelta(seconds=0.7)
            raise (Retry(delay) if how == "retry" else Snooze(delay)) from Odd()

    async def awaited(how: str) -> None:
        plain(how)

    task = app.register(awaited if colour == "async" else plain, name="f", max_attempts=2, backoff=at_once)
    jobs = [await enqueue(task, {"how": how}) for how in starts]
    served = await serve(slots=2)
    await table.ended(*jobs)

    retried, snoozed = await table.jobs(*jobs)
    assert (retried["state"], retried["attempt"], retried["snoozes"]) == ("succeeded", 1, 0)
    assert (snoozed["state"], snoozed["attempt"], snoozed["snoozes"]) == ("succeeded", 0, 1)
    for how, [_, second] in starts.items():
        assert 0.7 <= second - ends[how] < 2.7
    assert served.up


def handling(cause: bool) -> None:
    try:
        raise KeyError("first")
    except KeyError as first:
        if cause:
            raise ValueError("second") from first
        raise ValueError("second")  # noqa: B904 - the context is what is looked at


def cyclic(cause: bool) -> None:
    first, second = KeyError("first"), ValueError("second")
    if cause:
        first.__cause__, second.__cause__ = second, first
    else:
        first.__context__, second.__context__ = second, first
    raise second


@pytest.mark.parametrize("body", [handling, cyclic])
@pytest.mark.parametrize("cause", [False, True], ids=["context", "cause"])
async def test_b098_the_errors_entry_names_the_cause_too(
    app: Akadze, table: Table, serve: Serve, body: Callable[[bool], None], cause: bool
) -> None:
    job = await enqueue(app.register(body, name="f", max_attempts=1), {"cause": cause})
    served = await serve()
    row = await table.ended(job)
    [entry] = row["errors"]
    assert (row["state"], entry["error"]) == ("failed", "ValueError")
    assert entry["message"].startswith("second\n")
    assert entry["message"].count("KeyError: 'first'") == 1
    assert served.up
