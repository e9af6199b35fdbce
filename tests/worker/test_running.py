"""Contract, section 5: what a worker claims, and what a body sees of its job and its worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pydantic
import pytest

import akadze.sync
from akadze import Akadze, AkadzeError, Retry, Snooze, current, pause_queue, resume_queue
from akadze._worker.exchange import Exchange
from akadze.job import Job
from tests.odd_names import ODDLY_NAMED
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


async def test_a_worker_leaves_jobs_of_unknown_tasks_queued_and_they_block_nobody(
    app: Akadze, database_url: str, table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        pass

    newer = Akadze(database_url=database_url)
    known = app.register(body, name="a")
    newer.register(body, name="a")
    unknown = newer.register(body, name="b", priority=5)
    strangers = await enqueue_many(unknown, [{}] * 150)
    keyed = await enqueue(unknown, limit_key="k")
    jobs = await enqueue_many(known, [{}] * 3)
    exchanges: list[int] = []
    exchange = Exchange.exchange

    async def counted(self: Exchange, *arguments: Any) -> Any:
        exchanges.append(1)
        return await exchange(self, *arguments)

    monkeypatch.setattr(Exchange, "exchange", counted)
    older = await serve()
    assert (await table.ended(*jobs))["state"] == "succeeded"
    for job_id in (*strangers[:1], strangers[-1], keyed):
        row = await table.job(job_id)
        assert (row["state"], row["run_count"], row["attempt"], row["errors"]) == ("queued", 0, 0, [])
    # It polls on, no faster than it would with an empty queue.
    exchanges.clear()
    await asyncio.sleep(0.5)
    assert len(exchanges) <= 0.5 / 0.025 + 1
    await older.stop()
    await serve(newer, slots=50)
    row = await table.ended(*strangers, keyed)
    assert (row["state"], row["attempt"]) == ("succeeded", 0)
    await newer.aclose()


async def test_a_worker_takes_jobs_of_its_queues_only(app: Akadze, table: Table, serve: Serve) -> None:
    async def body() -> None:
        pass

    mail = app.register(body, name="mail", queue="mail")
    other = app.register(body, name="other", queue="other")
    left = await enqueue(other)
    done = await enqueue(mail)
    await serve(queues=["mail"])
    await table.ended(done)
    assert (await table.job(left))["state"] == "queued"


async def test_a_paused_queue_is_not_claimed_from_while_its_running_jobs_go_on(
    app: Akadze, table: Table, serve: Serve
) -> None:
    release = asyncio.Event()

    async def body() -> None:
        await release.wait()

    task = app.register(body, name="task", queue="q")
    other = app.register(at_once, name="other", queue="r")
    running = await enqueue(task)
    await serve(slots=2)
    await table.in_state(running, "running")
    async with app.engine.begin() as connection:
        await pause_queue(connection, "q")
    waiting = await enqueue(task)
    for _ in range(3):
        await table.ended(await enqueue(other, {"attempt": 1}))
    release.set()
    await table.ended(running)
    row = await table.job(waiting)
    assert (row["state"], row["run_count"]) == ("queued", 0)
    async with app.engine.begin() as connection:
        await resume_queue(connection, "q")
    assert (await table.ended(waiting))["state"] == "succeeded"


async def test_slots_count_for_each_queue(app: Akadze, table: Table, serve: Serve) -> None:
    release = asyncio.Event()

    async def body() -> None:
        await release.wait()

    for name in ("a", "b"):
        await enqueue_many(app.register(body, name=name, queue=name), [{}] * 3)
    await serve(slots=2)
    await table.until("select count(*) = 4 from akadze.jobs where state = 'running'")
    counts = await table.rows("select queue, count(*) from akadze.jobs where state = 'running' group by 1 order by 1")
    assert counts == [{"queue": "a", "count": 2}, {"queue": "b", "count": 2}]
    release.set()
    await table.until("select count(*) = 6 from akadze.jobs where state = 'succeeded'")


async def test_jobs_start_by_priority_then_run_at_then_in_the_order_of_enqueue(
    app: Akadze, table: Table, serve: Serve
) -> None:
    order: list[str] = []

    @app.task("task")
    async def task(name: str) -> None:
        order.append(name)

    now = datetime.now(UTC)
    given: dict[str, dict[str, Any]] = {
        "third": {},
        "fourth": {},
        "first": {"priority": 1},
        "second": {"run_at": now - timedelta(hours=1)},
        "last": {"priority": -1, "run_at": now - timedelta(days=1)},
    }
    for name, options in given.items():
        last = await enqueue(task, {"name": name}, **options)
    await serve()
    await table.ended(last)
    assert order == ["first", "second", "third", "fourth", "last"]


async def test_a_job_does_not_start_before_its_time(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    job_id = await enqueue(task, delay=timedelta(seconds=0.4))
    await serve()
    row = await table.ended(job_id)
    assert row["started_at"] >= row["run_at"] == row["created_at"] + timedelta(seconds=0.4)


class Order(pydantic.BaseModel):
    ids: list[UUID]
    at: dict[str, datetime]
    raw: bytes
    amount: Decimal


ID = UUID("12345678-1234-5678-1234-567812345678")
AT = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
COLOUR: ContextVar[str] = ContextVar("colour", default="white")


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_each_run_has_a_fresh_copy_of_the_workers_context(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    def look_and_paint() -> str:
        before = COLOUR.get()
        COLOUR.set("red")
        return before

    async def body() -> str:
        return look_and_paint()

    task = app.register(body if colour == "async" else look_and_paint, name="task")
    token = COLOUR.set("blue")
    await serve()
    COLOUR.reset(token)
    jobs = [await enqueue(task) for _ in range(3)]
    await table.ended(*jobs)
    assert [row["result"] for row in await table.jobs(*jobs)] == ["blue"] * 3
    assert COLOUR.get() == "white"


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_body_sees_its_job(app: Akadze, table: Table, serve: Serve, colour: str) -> None:
    seen: list[Job] = []

    async def body(n: int) -> None:
        seen.append(current().job)

    def sync_body(n: int) -> None:
        seen.append(akadze.sync.current().job)

    task = app.register(body if colour == "async" else sync_body, name="task", queue="q", max_attempts=4, priority=2)
    at = datetime.now(UTC) + timedelta(days=1)
    options = {"unique_key": "u", "limit_key": "l", "meta": {"tenant": 7}, "expires_at": at}
    job_id = await enqueue(task, {"n": 2**60}, **options)
    served = await serve()
    await table.ended(job_id)
    assert seen == [
        Job(
            id=job_id,
            task="task",
            queue="q",
            priority=2,
            state="running",
            args={"n": 2**60},
            run_count=1,
            attempt=0,
            max_attempts=4,
            snoozes=0,
            unique_key="u",
            limit_key="l",
            worker_id=served.id,
            errors=[],
            result=None,
            cancel_requested_at=None,
            expires_at=at,
            expired=False,
            meta={"tenant": 7},
        )
    ]


@pytest.mark.parametrize("current", [akadze.current, akadze.sync.current])
async def test_there_is_no_current_job_outside_a_job(current: Any) -> None:
    with pytest.raises(AkadzeError, match="outside a job"):
        current()


class Address(pydantic.BaseModel):
    street: str
    tags: list[str] = []


async def test_arguments_arrive_as_the_declared_types_fresh_in_each_run(
    app: Akadze, table: Table, serve: Serve
) -> None:
    seen: list[tuple[Address, list[Address], Order, UUID]] = []

    @app.task("task", backoff=at_once)
    async def task(a: Address, more: list[Address], order: Order, key: UUID) -> None:
        seen.append((a.model_copy(deep=True), more, order, key))
        a.tags.append("touched")
        if current().job.run_count == 1:
            raise Retry

    order = Order(ids=[uuid4(), uuid4()], at={"now": AT}, raw=b"abc", amount=Decimal("1.10"))
    given = Address(street="Lipová", tags=["home"])
    as_models = await enqueue(task, {"a": given, "more": [given], "order": order, "key": ID})
    as_dicts = await enqueue(
        task,
        {"a": given.model_dump(), "more": [given.model_dump()], "order": order.model_dump(mode="json"), "key": str(ID)},
    )
    await serve()
    await table.ended(as_models, as_dicts)
    assert seen == [(given, [given], order, ID)] * 4
    assert {type(item) for a, more, _, _ in seen for item in (a, *more)} == {Address}


@pytest.mark.parametrize("colour", ODDLY_NAMED)
async def test_parameters_that_have_the_names_of_everything_that_a_run_uses_get_what_was_given(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    task, given, arrived = ODDLY_NAMED[colour](app)
    jobs = [await enqueue(task, given), *await enqueue_many(task, [given])]
    await serve()
    await table.ended(*jobs)
    assert [(row["state"], row["errors"]) for row in await table.jobs(*jobs)] == [("succeeded", [])] * 2
    assert arrived == [given] * 2


async def test_stored_arguments_that_do_not_fit_any_more_are_an_error_of_the_run(
    app: Akadze, table: Table, serve: Serve
) -> None:
    called: list[int] = []

    @app.task("task", max_attempts=1)
    async def task(n: int) -> None:
        called.append(n)

    # As enqueued by a release with another signature.
    inserted = await table.rows(
        "insert into akadze.jobs (task, args, max_attempts) values"
        """ ('task', '{}', 1), ('task', '{"n": "a pa55word"}', 1), ('task', '{"n": 1, "m": 2}', 1) returning id"""
    )
    jobs = [row["id"] for row in inserted]
    served = await serve()
    await table.ended(*jobs)
    for row in await table.jobs(*jobs):
        assert (row["state"], row["attempt"]) == ("failed", 1)
        assert "pa55word" not in row["errors"][0]["message"]
    assert called == []
    assert served.up


class Loud(pydantic.BaseModel):
    secret: str

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")

    __str__ = __repr__


async def test_arguments_and_results_are_never_logged_nor_even_turned_into_text(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "akadze")

    @app.task("task", max_attempts=2, backoff=at_once)
    async def task(given: Loud) -> Loud:
        if current().job.run_count == 1:
            raise ValueError(given.secret)
        return given

    job_id = await enqueue(task, {"given": Loud(secret="a pa55word")}, meta={"note": "a pa55word"})
    served = await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["result"]) == ("succeeded", {"secret": "a pa55word"})
    assert served.up
    assert "pa55word" not in caplog.text


async def test_what_a_worker_needs_does_not_grow_with_the_jobs_it_has_run(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=1, timeout=timedelta(seconds=30))
    async def task(how: int) -> None:
        if how == 1:
            raise ValueError("one")
        if how == 2 and current().job.snoozes == 0:
            raise Snooze(timedelta(0))

    @app.task("plain", max_attempts=1)
    def plain() -> None:
        pass

    app.hooks.before_run.append(lambda job: None)
    app.hooks.after_run.append(lambda job: None)
    served = await serve(slots=10)

    async def run_many() -> tuple[int, int]:
        for start in range(0, 200, 50):
            await enqueue_many(task, [{"how": number % 3} for number in range(start, start + 50)])
            await enqueue_many(plain, [{}] * 25)
        await table.until("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')")
        await until(lambda: len(asyncio.all_tasks()) < 15)
        return len(asyncio.all_tasks()), threading.active_count()

    tasks, threads = await run_many()
    for _ in range(2):
        tasks_now, threads_now = await run_many()
    assert abs(tasks_now - tasks) <= 3
    assert threads_now - threads <= 10
    assert threads_now <= 10 + 5
    serving = served.worker._serving
    assert serving is not None
    assert (len(serving._loop.runs), len(serving._writer), serving._loop._slots.busy) == (0, 0, 0)
