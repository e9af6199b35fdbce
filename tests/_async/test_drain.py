"""Contract, section 12: drain runs what is ready, and only that."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from akadze import Akadze, AkadzeError, EnqueueError, Retry, Snooze, list_workers, pause_queue, request_cancel
from akadze.testing import drain
from tests.coroutines import coroutine_task

from .conftest import Engine, Rows
from .table import ids, numbers, states

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def ran() -> list[Any]:
    """What the tasks of these tests have done."""
    return []


@pytest.fixture
def work(app: Akadze, ran: list[Any]) -> Any:
    @app.task("work")
    def work(n: int = 0) -> int:
        ran.append(n)
        return n

    return work


@pytest.fixture
def coroutine(app: Akadze, ran: list[Any]) -> Any:
    return coroutine_task(app, ran)


async def test_every_ready_job_runs_in_the_order_of_claims(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection, run_at=PAST + timedelta(days=2)).enqueue(n=4)
        await work.using(session=connection, run_at=PAST + timedelta(days=1)).enqueue(n=3)
        await work.using(session=connection, run_at=PAST + timedelta(days=2)).enqueue(n=5)
        await work.using(session=connection, priority=1).enqueue(n=1)
        await work.using(session=connection, priority=2).enqueue(n=0)
        await work.using(session=connection, priority=1).enqueue(n=2)
        await work.using(session=connection, priority=-1, run_at=PAST).enqueue(n=6)
    assert await drain(app) is None
    assert ran == [0, 1, 2, 3, 4, 5, 6]
    assert await states(rows) == ["succeeded"] * 7


async def test_a_run_leaves_its_marks_on_the_row(engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue(n=7)
    await drain(app)
    assert await rows(
        "select state, run_count, attempt, snoozes, errors, result, worker_id, expired, cancel_requested_at,"
        " created_at <= started_at and started_at <= finished_at as timed from akadze.jobs"
    ) == [
        {
            "state": "succeeded",
            "run_count": 1,
            "attempt": 0,
            "snoozes": 0,
            "errors": [],
            "result": 7,
            "worker_id": None,
            "expired": False,
            "cancel_requested_at": None,
            "timed": True,
        }
    ]


async def test_drain_wants_the_app() -> None:
    with pytest.raises(AkadzeError, match="app is of type str: pass the Akadze app whose jobs are to be run"):
        await drain("shop:app")


async def test_the_app_is_given_by_its_position(app: Akadze) -> None:
    with pytest.raises(TypeError, match="positional-only"):
        await drain(app=app)  # type: ignore[call-arg]  # what is tested


async def test_nothing_to_do_is_no_error(app: Akadze) -> None:
    await drain(app)
    await drain(app, limit=1)


async def test_both_kinds_of_function_run(
    engine: Engine, work: Any, coroutine: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue(n=1)
        await coroutine.using(session=connection).enqueue(n=2)
    await drain(app)
    assert ran == [1, 2]
    assert await rows("select state, result from akadze.jobs order by id") == [
        {"state": "succeeded", "result": 1},
        {"state": "succeeded", "result": 2},
    ]


async def test_jobs_of_the_future_stay_queued(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection, delay=timedelta(hours=1)).enqueue(n=1)
        await work.using(session=connection).enqueue(n=2)
    await drain(app)
    assert ran == [2]
    assert await states(rows) == ["queued", "succeeded"]


@pytest.mark.parametrize("kind", [Retry, Snooze])
async def test_a_job_that_puts_itself_off_waits_for_the_next_drain_however_slow_this_one_is(
    kind: Any, engine: Engine, app: Akadze, rows: Rows
) -> None:
    @app.task("later", priority=1)
    def later() -> None:
        raise kind(timedelta(milliseconds=100))

    @app.task("slow")
    def slow() -> None:
        time.sleep(0.3)

    async with engine.begin() as connection:
        await later.using(session=connection).enqueue()
        await slow.using(session=connection).enqueue()
    await drain(app)
    assert await states(rows) == ["queued", "succeeded"]
    assert await rows("select run_count from akadze.jobs where run_at <= now() and state = 'queued'") == [
        {"run_count": 1}
    ]


async def test_jobs_of_a_paused_queue_stay_queued_whatever_they_are(
    engine: Engine, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    paused = app.register(lambda: ran.append("paused"), name="paused", queue="mail")
    async with engine.begin() as connection:
        await paused.using(session=connection).enqueue()
        await connection.execute(text("insert into akadze.jobs (task, queue) values ('unknown', 'mail')"))
        await pause_queue(connection, "mail")
    await drain(app)
    assert ran == []
    assert await states(rows) == ["queued", "queued"]


async def test_what_was_asked_to_cancel_or_has_expired_is_cancelled_also_while_its_queue_is_paused(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    mail = app.register(lambda: ran.append("mail"), name="mail", queue="mail")
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue(n=1)
        await work.using(session=connection, expires_at=PAST).enqueue(n=2)
        await work.using(session=connection, delay=timedelta(hours=1), expires_at=PAST).enqueue(n=3)
        await mail.using(session=connection, expires_at=PAST).enqueue()
        await work.using(session=connection).enqueue(n=4)
        await pause_queue(connection, "mail")
    async with engine.begin() as connection:
        await request_cancel(connection, (await ids(rows))[0])
    await drain(app)
    assert ran == [4]
    assert await rows("select state, expired, run_count from akadze.jobs order by id") == [
        {"state": "cancelled", "expired": False, "run_count": 0},
        {"state": "cancelled", "expired": True, "run_count": 0},
        {"state": "cancelled", "expired": True, "run_count": 0},
        {"state": "cancelled", "expired": True, "run_count": 0},
        {"state": "succeeded", "expired": False, "run_count": 1},
    ]


async def test_a_ready_job_of_a_task_that_is_not_registered_is_an_error_after_the_others_have_run(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("insert into akadze.jobs (task, priority) values ('unknown', 9)"))
        await work.using(session=connection).enqueue(n=1)
    with pytest.raises(AkadzeError, match="task 'unknown' is ready, but the task is not registered") as raised:
        await drain(app)
    assert not isinstance(raised.value, EnqueueError)
    assert ran == [1]
    assert await states(rows) == ["queued", "succeeded"]
    assert await list_workers(engine) == ()


async def test_a_planned_job_of_an_unknown_task_is_no_error(engine: Engine, app: Akadze, rows: Rows) -> None:
    await rows("insert into akadze.jobs (task, run_at) values ('unknown', now() + interval '1 hour')")
    await drain(app)
    assert await states(rows) == ["queued"]


async def test_jobs_that_are_enqueued_meanwhile_run_too(
    engine: Engine, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    @app.task("follow")
    def follow(n: int) -> None:
        ran.append(n)
        if n < 3:
            with app.sync_engine.begin() as connection:
                follow.using(session=connection).enqueue(n=n + 1)

    async with engine.begin() as connection:
        await follow.using(session=connection).enqueue(n=1)
    await drain(app)
    assert ran == [1, 2, 3]
    assert await states(rows) == ["succeeded"] * 3


async def test_jobs_left_after_limit_runs_are_an_error(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue_many({"n": n} for n in range(4))
    with pytest.raises(AkadzeError, match="task 'work' are still ready after 3 runs"):
        await drain(app, limit=3)
    assert ran == [0, 1, 2]
    await drain(app, limit=1)
    assert await states(rows) == ["succeeded"] * 4


async def test_a_job_that_makes_itself_ready_for_ever_ends_at_the_limit(
    engine: Engine, app: Akadze, rows: Rows
) -> None:
    @app.task("again", max_attempts=1000, backoff=lambda attempt: timedelta(0))
    def again() -> None:
        raise ZeroDivisionError

    async with engine.begin() as connection:
        await again.using(session=connection).enqueue()
    with pytest.raises(AkadzeError, match="still ready after 20 runs"):
        await drain(app, limit=20)
    assert await rows("select state, run_count, attempt from akadze.jobs") == [
        {"state": "queued", "run_count": 20, "attempt": 20}
    ]


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "5", None, 10**5000], ids=lambda limit: type(limit).__name__)
async def test_a_limit_that_is_no_number_of_runs_is_refused(limit: Any, app: Akadze) -> None:
    with pytest.raises(AkadzeError, match="limit"):
        await drain(app, limit=limit)


async def test_an_open_transaction_hides_its_jobs_and_stays_usable(
    connection: AsyncConnection, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    await work.using(session=connection).enqueue(n=1)
    await drain(app)
    assert ran == []
    assert (await connection.execute(text("select count(*) from akadze.jobs"))).scalar() == 1
    assert connection.in_transaction()
    await connection.commit()
    await drain(app)
    assert ran == [1]
    assert await states(rows) == ["succeeded"]


async def test_jobs_that_somebody_else_runs_are_left_alone(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue(n=1)
    await rows("update akadze.jobs set state = 'running', run_count = 1, worker_id = gen_random_uuid()")
    await drain(app)
    assert ran == []
    assert await states(rows) == ["running"]


async def test_a_drain_is_a_worker_while_it_runs_so_that_others_do_not_take_its_jobs_for_lost(
    engine: Engine, app: Akadze, rows: Rows
) -> None:
    alive = (
        "select count(*) from akadze.jobs j join akadze.workers w on w.id = j.worker_id"
        " where j.state = 'running' and w.heartbeat_at > now() - w.heartbeat_ttl"
    )

    @app.task("look")
    def look() -> Any:
        with app.sync_engine.connect() as connection:
            return connection.execute(text(alive)).scalar()

    async with engine.begin() as connection:
        await look.using(session=connection).enqueue()
    await drain(app)
    assert await rows("select state, result from akadze.jobs") == [{"state": "succeeded", "result": 1}]
    assert await list_workers(engine) == ()


async def test_where_a_plain_function_runs(engine: Engine, app: Akadze, ran: list[Any]) -> None:
    @app.task("where")
    def where() -> None:
        ran.append(threading.get_ident())

    async with engine.begin() as connection:
        await where.using(session=connection).enqueue()
    await drain(app)
    if True:  # ASYNC
        assert ran != [threading.get_ident()]
    else:
        assert ran == [threading.get_ident()]


async def test_the_default_backoff_keeps_a_failed_run_for_later(
    engine: Engine, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    @app.task("broken", max_attempts=2)
    def broken() -> None:
        ran.append(1)
        raise ZeroDivisionError

    async with engine.begin() as connection:
        await broken.using(session=connection).enqueue()
    await drain(app)
    assert ran == [1]
    await rows("update akadze.jobs set run_at = now()")
    await drain(app)
    assert ran == [1, 1]
    assert await states(rows) == ["failed"]


async def test_two_hundred_jobs_are_drained_by_one_call(
    engine: Engine, work: Any, app: Akadze, ran: list[Any], rows: Rows
) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue_many({"n": n} for n in range(200))
    await drain(app)
    assert ran == await numbers(rows) == list(range(200))
