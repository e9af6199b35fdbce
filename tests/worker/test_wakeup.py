"""Contract, section 5: an idle worker is woken by NOTIFY; polling finds what no notification told of."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from akadze import Akadze, AkadzeError, Retry, Snooze, Worker, current, requeue, resume_queue
from akadze._worker.exchange import Exchange, Survey
from akadze._worker.loop import Loop
from akadze.task import Task
from tests.waiting import until
from tests.worker.proxy import proxied
from tests.worker.serving import Serve, Served
from tests.worker.table import SESSIONS, Table, enqueue, enqueue_many

# Polling that no test waits for.
NEVER = 600

SLEEPS = "select sleeping from akadze.workers where id = %s"


@pytest.fixture
def task(app: Akadze) -> Task[[]]:
    async def body() -> None:
        pass

    return app.register(body, name="task")


async def asleep(served: Served, table: Table) -> None:
    await table.until(SLEEPS, served.id)


async def test_a_sleeping_worker_is_woken_by_each_way_in_which_a_job_becomes_ready(
    app: Akadze, task: Task[[]], table: Table, serve: Serve
) -> None:
    served = await serve(poll_interval=NEVER)
    await asleep(served, table)
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    await asleep(served, table)
    await table.ended(*await enqueue_many(task, [{}] * 3))
    await asleep(served, table)
    failed = (await table.rows("insert into akadze.jobs (task, state) values ('task', 'failed') returning id"))[0]["id"]
    async with app.engine.begin() as connection:
        await requeue(connection, failed)
    await table.ended(failed)
    await table.rows("insert into akadze.queue_pauses (queue) values ('default')")
    paused = await enqueue(task)
    await asleep(served, table)
    async with app.engine.begin() as connection:
        await resume_queue(connection, "default")
    await table.ended(paused)


async def test_a_rolled_back_enqueue_wakes_nobody_and_a_late_commit_does(
    app: Akadze, task: Task[[]], table: Table, serve: Serve
) -> None:
    served = await serve(poll_interval=NEVER)
    await asleep(served, table)
    async with app.engine.connect() as connection:
        await connection.begin()
        await task.using(session=connection).enqueue()
        await connection.rollback()
        await connection.begin()
        await task.using(session=connection).enqueue()
        assert await table.value(SLEEPS, served.id)
        await connection.commit()
    await table.until("select count(*) = 1 from akadze.jobs where state = 'succeeded'")


async def test_jobs_of_other_queues_do_not_wake_a_worker(
    app: Akadze, task: Task[[]], table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        pass

    stranger = app.register(body, name="other", queue="other")
    served = await serve(queues=["default"], poll_interval=NEVER)
    await asleep(served, table)
    wakes: list[float] = []
    wake = Loop.wake

    def counted(self: Loop) -> None:
        wakes.append(time.monotonic())
        wake(self)

    monkeypatch.setattr(Loop, "wake", counted)
    other = await enqueue(stranger)
    await table.rows("select pg_notify('akadze', 'other')")
    # Notifications come in the order of commits: when this job has run, the worker has heard of the other queue.
    await table.ended(await enqueue(task))
    assert len(wakes) == 1
    assert (await table.job(other))["state"] == "queued"


async def test_a_worker_that_hears_of_others_does_not_answer_them(
    task: Task[[]], database_url: str, table: Table, serve: Serve
) -> None:
    for _ in range(2):
        await asleep(await serve(poll_interval=NEVER), table)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("listen akadze")
        await connection.execute("select pg_notify('akadze', 'of another queue')")
        heard = [notification.payload async for notification in connection.notifies(timeout=0.5)]
    assert heard == ["of another queue"]


async def test_without_notify_new_jobs_are_found_by_polling(task: Task[[]], table: Table, serve: Serve) -> None:
    await serve(notify=False, poll_interval=0.05)
    for _ in range(3):
        assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    assert await table.value(f"select count(*) = 0 {SESSIONS} and query ilike 'listen%%'")
    assert not await table.value("select bool_or(sleeping) from akadze.workers")


@pytest.fixture
def surveys(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each survey of a worker that has been answered began, by the monotonic clock."""
    begun: list[float] = []
    survey = Exchange.survey

    async def noted(self: Exchange) -> Survey:
        now = time.monotonic()
        answer = await survey(self)
        begun.append(now)
        return answer

    monkeypatch.setattr(Exchange, "survey", noted)
    return begun


async def test_an_idle_worker_looks_no_more_often_than_its_poll_interval_says(
    task: Task[[]], serve: Serve, surveys: list[float]
) -> None:
    await serve(notify=False, poll_interval=0.4)
    await until(lambda: len(surveys) > 4)
    # The pauses are cut by up to a quarter, so that workers do not poll in step.
    assert min(later - one for one, later in pairwise(surveys)) > 0.75 * 0.4 - 0.005


async def test_a_worker_that_polls_seldom_does_not_look_meanwhile(
    task: Task[[]], table: Table, serve: Serve, surveys: list[float]
) -> None:
    await serve(notify=False, poll_interval=NEVER)
    await until(lambda: surveys)
    await table.rows("insert into akadze.jobs (task) values ('task')")
    await table.until("select now() > created_at + interval '2 s' from akadze.jobs")
    assert [*(await table.states()).values()] == ["queued"]
    assert len(surveys) == 1


async def test_a_job_that_came_in_past_the_api_is_found_by_polling(task: Task[[]], table: Table, serve: Serve) -> None:
    served = await serve(poll_interval=0.05)
    await asleep(served, table)
    await table.rows("insert into akadze.jobs (task) values ('task')")
    await table.until("select count(*) = 1 from akadze.jobs where state = 'succeeded'")


async def test_a_worker_wakes_by_itself_when_a_job_that_it_knows_of_becomes_due(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", backoff=lambda attempt: timedelta(seconds=0.2))
    async def task() -> int:
        run = current().job.run_count
        if run == 1:
            raise ValueError("first")
        if run == 2:
            raise Retry(timedelta(seconds=0.2))
        if run == 3:
            raise Snooze(timedelta(seconds=0.2))
        return run

    planned = await enqueue(task, delay=timedelta(seconds=0.3))
    await serve(poll_interval=NEVER)
    assert (await table.ended(planned))["result"] == 4


@pytest.mark.parametrize("kind", ["plain", "limited", "fair"])
async def test_a_job_that_was_committed_late_is_found_when_a_slot_comes_free(
    app: Akadze, table: Table, serve: Serve, kind: str
) -> None:
    """It stands before the place that the worker has read up to, and its notification finds no free slot."""
    started, go = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        started.set()
        await go.wait()

    if kind == "limited":
        await table.rows("insert into akadze.limits (key, max_running) values ('k', 1)")
    task = app.register(body, name="task")
    served = await serve(poll_interval=NEVER, slots=1, fair=kind == "fair")
    await asleep(served, table)
    loop = served.worker._serving
    assert loop is not None
    # As after a long sleep: a wake-up surveys first, and no other survey is due when the run ends.
    await until(lambda: time.monotonic() > loop._loop._next_survey + 1)

    key = None if kind == "plain" else "k"
    async with app.engine.connect() as connection:
        await connection.begin()
        await task.using(session=connection, limit_key=key).enqueue()
        await enqueue(task, limit_key=key)
        await started.wait()
        await connection.commit()
    go.set()

    await table.until("select count(*) = 2 from akadze.jobs where state = 'succeeded'")


async def test_a_full_worker_claims_again_as_soon_as_a_run_ends(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        await asyncio.sleep(0.01)

    jobs = await enqueue_many(task, [{}] * 30)
    await serve(slots=2, poll_interval=NEVER)
    await table.ended(*jobs)


async def test_a_lost_wake_up_connection_is_opened_again(task: Task[[]], table: Table, serve: Serve) -> None:
    served = await serve(poll_interval=NEVER)
    await asleep(served, table)
    listening = f"select pid {SESSIONS} and query ilike '%%pg_notify%%'"
    for _ in range(2):
        pid = await table.value(listening)
        assert pid is not None
        await table.rows("select pg_terminate_backend(%s)", pid)
        await table.until(f"{listening} and pid <> %s", pid)
        await asleep(served, table)
        assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    assert served.up


async def test_jobs_are_found_by_polling_while_listening_does_not_work(
    app: Akadze,
    task: Task[[]],
    database_url: str,
    table: Table,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with proxied(database_url) as proxy:
        proxy.cut()
        monkeypatch.setenv("AKADZE_LISTEN_URL", proxy.url)
        served = await serve(poll_interval=0.05)
        for _ in range(2):
            assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
        assert not await table.value(SLEEPS, served.id)
        # And when it works again, it is used.
        proxy.restore()
        await asleep(served, table)
        await served.stop()


async def test_the_listener_connects_to_a_url_of_its_own_where_one_is_given(
    task: Task[[]], database_url: str, table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    separator = "&" if "?" in database_url else "?"
    monkeypatch.setenv("AKADZE_LISTEN_URL", f"{database_url}{separator}application_name=the+listener")
    served = await serve(poll_interval=NEVER)
    await asleep(served, table)
    assert await table.value(f"select count(*) {SESSIONS} and application_name = 'the listener'") == 1
    assert (await table.ended(await enqueue(task)))["state"] == "succeeded"


async def test_a_malformed_url_to_listen_on_is_told_before_anything_is_claimed(
    app: Akadze, task: Task[[]], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(task)
    for url in ("ada:secret", "postgresql://ada:secret@db/app?nosuch=1"):
        monkeypatch.setenv("AKADZE_LISTEN_URL", url)
        with pytest.raises(AkadzeError, match=r"^AKADZE_LISTEN_URL cannot be used: ") as raised:
            await Worker(app, poll_interval=timedelta(seconds=0.05)).serve(asyncio.Event())
        assert "secret" not in str(raised.value)
    assert await table.value("select run_count from akadze.jobs") == 0
    stop = asyncio.Event()
    stop.set()
    await Worker(app, notify=False).serve(stop)


async def test_a_worker_whose_connections_pass_no_notifications_on_says_so_once_and_polls(
    task: Task[[]], table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def deaf(self: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        nothing: list[Any] = []
        for notification in nothing:
            yield notification

    monkeypatch.setattr(psycopg.AsyncConnection, "notifies", deaf)
    monkeypatch.setattr("akadze._worker.wakeup._TRY_AGAIN", 0.05)
    served = await serve(poll_interval=0.05)
    for _ in range(3):
        assert (await table.ended(await enqueue(task)))["state"] == "succeeded"
    await served.stop()
    warnings = [record for record in caplog.records if "notifications do not arrive" in record.getMessage()]
    assert len(warnings) == 1
