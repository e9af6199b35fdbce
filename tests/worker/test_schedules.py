"""Contract, section 10: slots of schedules become jobs on a real database: once each, not late, with their hooks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any, LiteralString

import pytest
from sqlalchemy import event, text

from akadze import Akadze
from akadze._worker import upkeep
from akadze._worker.schedules import Schedules
from akadze.job import Job
from tests.worker.firing import MINUTE, NOON, SECOND, Tables, add_task, held_in_a_hook, jobs, look_at, marks, step
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    with look_at(database_url) as tables:
        yield tables


# One slot, one job.


async def test_a_due_slot_becomes_a_job_that_is_planned_for_it(app: Akadze, tables: Tables) -> None:
    add_task(app, queue="reports", max_attempts=7, priority=3)
    app.add_schedule("report", cron="0 12 * * *")
    report = await step(app, NOON + 5 * SECOND)
    assert (report.fired, report.held, report.failed) == (1, 0, 0)
    [job] = tables.execute("select * from akadze.jobs").fetchall()
    assert (job["task"], job["queue"], job["max_attempts"], job["run_at"]) == ("report", "reports", 7, NOON)
    assert (job["state"], job["priority"], job["args"], job["meta"]) == ("queued", 0, {}, {})
    assert (job["unique_key"], job["limit_key"], job["expires_at"]) == (None, None, None)
    assert marks(tables) == [("report", NOON, job["id"])]


async def test_a_slot_that_has_its_job_is_not_fired_by_another_worker(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE)
    schedules = Schedules(app)
    assert (await step(app, NOON, schedules)).fired == 1
    for late in range(0, 60, 20):
        assert (await step(app, NOON + late * SECOND, schedules)).fired == 0
        assert (await step(app, NOON + late * SECOND)).fired == 0
    assert (await step(app, NOON + MINUTE)).fired == 1
    assert jobs(tables, "run_at") == [NOON, NOON + MINUTE]


@pytest.mark.parametrize(
    "statement",
    ["update akadze.jobs set state = 'succeeded', finished_at = now()", "delete from akadze.jobs"],
    ids=["finished", "deleted"],
)
@pytest.mark.parametrize("overlap", [True, False])
async def test_a_finished_or_deleted_job_does_not_free_its_slot(
    app: Akadze, tables: Tables, statement: LiteralString, overlap: bool
) -> None:
    add_task(app)
    app.add_schedule("report", every=MINUTE, overlap=overlap)
    await step(app, NOON)
    assert tables.execute(statement).rowcount == 1
    assert (await step(app, NOON + SECOND)).fired == 0


async def test_a_worker_fires_also_the_schedules_of_queues_that_it_does_not_serve(
    app: Akadze, tables: Tables, table: Table, serve: Serve
) -> None:
    mail = app.register(lambda: None, name="mail", queue="mail")
    add_task(app, queue="nightly")
    app.add_schedule("report", every=MINUTE)
    await serve(queues=["mail"])
    await table.until("select exists (select from akadze.jobs where task = 'report')")
    # It claims, and leaves the job of the schedule to others.
    assert (await table.ended(await enqueue(mail)))["state"] == "succeeded"
    job = (await table.rows("select * from akadze.jobs where task = 'report' order by id"))[0]
    assert (job["queue"], job["state"], job["run_count"]) == ("nightly", "queued", 0)
    assert marks(tables)[0] == ("report", job["run_at"], job["id"])


async def test_three_workers_at_one_slot_enqueue_one_job(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *")
    async with held_in_a_hook(app, NOON):
        second, third = await asyncio.gather(step(app, NOON), step(app, NOON))
        assert (second.fired, third.fired) == (0, 0)
        # They do not wait for the first one, but look again.
        assert (second.held, third.held) == (1, 1)
        assert second.next_in <= 0.5
        assert jobs(tables, "id") == []
    assert (await step(app, NOON + SECOND)).fired == 0
    assert jobs(tables, "run_at") == [NOON]


async def test_a_slot_whose_worker_dies_before_its_commit_is_fired_by_the_next(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *")

    async def die(connection: Any, job: Job) -> None:
        passing.cancel()
        await asyncio.sleep(600)

    app.hooks.on_enqueue.append(die)
    passing = asyncio.create_task(step(app, NOON))
    with pytest.raises(asyncio.CancelledError):
        await passing
    app.hooks.on_enqueue.remove(die)
    assert jobs(tables, "id") == []
    assert (await step(app, NOON + 30 * SECOND)).fired == 1
    assert jobs(tables, "run_at") == [NOON]


async def test_many_workers_that_step_at_once_enqueue_each_slot_once(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", every=20 * SECOND)
    workers = [Schedules(app) for _ in range(4)]
    for slot in range(15):
        reports = await asyncio.gather(*(step(app, NOON + slot * 20 * SECOND, worker) for worker in workers))
        assert sum(report.fired for report in reports) == 1
    assert jobs(tables, "run_at") == [NOON + slot * 20 * SECOND for slot in range(15)]


async def test_two_schedules_of_one_task_share_the_slot_where_they_meet(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", cron="0 12 * * *", queue="daily")
    app.add_schedule("report", every=MINUTE)
    assert (await step(app, NOON)).fired == 1
    assert (await step(app, NOON + MINUTE)).fired == 1
    assert jobs(tables, "run_at", "queue") == [(NOON, "daily"), (NOON + MINUTE, "default")]


async def test_schedules_of_two_tasks_do_not_share_slots(app: Akadze, tables: Tables) -> None:
    for name in ("report", "Report", "réport"):
        add_task(app, name)
        app.add_schedule(name, cron="0 12 * * *")
    assert (await step(app, NOON)).fired == 3
    assert sorted(jobs(tables, "task")) == sorted(["report", "Report", "réport"])


# Lateness.


async def test_after_downtime_only_the_latest_slot_is_fired(app: Akadze, tables: Tables) -> None:
    for name, trigger in (("a", {"every": MINUTE}), ("b", {"cron": "* * * * *"})):
        add_task(app, name)
        app.add_schedule(name, **trigger)
    await step(app, NOON - 2 * 60 * MINUTE)
    tables.execute("delete from akadze.jobs")
    assert (await step(app, NOON + 30 * SECOND)).fired == 2
    assert (await step(app, NOON + 40 * SECOND)).fired == 0
    assert jobs(tables, "run_at") == [NOON, NOON]


async def test_a_slot_older_than_grace_is_left_out(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.grace = 10 * SECOND
    app.add_schedule("report", cron="0 12 * * *")
    assert (await step(app, NOON + 11 * SECOND)).fired == 0
    assert (await step(app, NOON + 10 * SECOND)).fired == 1


async def test_short_lived_workers_keep_the_slots_of_a_long_interval(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.grace = 10 * SECOND
    app.add_schedule("report", every=20 * SECOND)
    for second in range(0, 180, 8):
        await step(app, NOON + second * SECOND)
    assert jobs(tables, "run_at") == [NOON + slot * 20 * SECOND for slot in range(9)]


async def test_the_clock_of_the_database_decides(app: Akadze, tables: Tables) -> None:
    add_task(app)
    app.add_schedule("report", every=SECOND)
    before = tables.execute("select clock_timestamp() as now").fetchone()["now"]
    assert (await step(app)).fired == 1
    after = tables.execute("select clock_timestamp() as now").fetchone()["now"]
    [slot] = jobs(tables, "run_at")
    assert before - SECOND < slot <= after
    assert slot.microsecond == 0


async def test_a_pass_tells_when_the_next_one_is_worth_while(app: Akadze) -> None:
    assert (await step(app, NOON)).next_in == 10
    add_task(app)
    app.add_schedule("report", cron="0 13 * * *")
    # Not all the hour: the database's clock may be set meanwhile.
    assert 9 < (await step(app, NOON)).next_in <= 10
    assert 2 < (await step(app, NOON + 60 * MINUTE - 3 * SECOND)).next_in <= 3


async def test_a_pass_that_finds_nothing_new_reads_the_clock_and_no_more(app: Akadze) -> None:
    add_task(app)
    app.add_schedule("report", cron="* * * * *")
    app.add_schedule("report", every=365 * 24 * 60 * MINUTE)
    statements: list[str] = []

    def note(connection: Any, cursor: Any, sql: str, *rest: Any) -> None:
        statements.append(sql)

    schedules = Schedules(app)
    await step(app, None, schedules)
    event.listen(app.engine.sync_engine, "before_cursor_execute", note)
    await step(app, None, schedules)
    # A minute may have begun in between.
    assert len(statements) in (1, 3)
    del statements[:]
    await step(app, NOON, schedules)
    await step(app, NOON, schedules)
    assert len(statements) == 2


# Hooks and wake-ups.


async def test_on_enqueue_hooks_see_the_job_in_its_transaction(app: Akadze, tables: Tables) -> None:
    add_task(app, queue="reports", max_attempts=7)
    app.add_schedule("report", cron="0 12 * * *")
    tables.execute("create table public.seen (job_id bigint)")
    seen: list[Job] = []

    async def note(connection: Any, job: Job) -> None:
        seen.append(job)
        await connection.execute(text("insert into public.seen values (:id)"), {"id": job.id})

    app.hooks.on_enqueue += [note, lambda connection, job: seen.append(job)]
    assert (await step(app, NOON)).fired == 1
    assert seen == [seen[0]] * 2
    job = seen[0]
    assert (job.id, job.task, job.queue, job.max_attempts) == (jobs(tables, "id")[0], "report", "reports", 7)
    assert (job.state, job.args, job.meta, job.priority, job.attempt, job.worker_id) == ("queued", {}, {}, 0, 0, None)
    assert tables.execute("select job_id from public.seen").fetchall() == [{"job_id": job.id}]
    # A slot that is done is not told of again.
    await step(app, NOON + SECOND)
    assert len(seen) == 2


async def test_a_hook_that_fails_leaves_its_slot_open_and_the_other_schedules_alone(
    app: Akadze, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        add_task(app, name)
        app.add_schedule(name, every=MINUTE)
    tables.execute("create table public.seen (task text)")

    async def refuse(connection: Any, job: Job) -> None:
        await connection.execute(text("insert into public.seen values (:task)"), {"task": job.task})
        if job.task == "b":
            raise LookupError("no such thing")

    app.hooks.on_enqueue.append(refuse)
    worker = Schedules(app)
    with caplog.at_level(logging.ERROR, logger="akadze.worker"):
        report = await step(app, NOON, worker)
    assert (report.fired, report.failed) == (2, 1)
    assert report.next_in <= 0.5
    assert "schedule of task b: an on_enqueue hook failed" in caplog.text
    assert "the hook raised LookupError\n" in caplog.text
    assert "LookupError: no such thing" not in caplog.text, "what an error says may hold arguments"
    assert sorted(jobs(tables, "task")) == ["a", "c"]
    assert [task for task, _, _ in marks(tables)] == ["a", "c"]
    assert len(tables.execute("select from public.seen").fetchall()) == 2

    app.hooks.on_enqueue.clear()
    assert (await step(app, NOON + 30 * SECOND, worker)).fired == 1
    assert jobs(tables, "task", "run_at")[-1] == ("b", NOON)


async def test_a_slot_whose_hook_hung_is_tried_again_within_a_small_grace(app: Akadze, tables: Tables) -> None:
    app.grace = 40 * SECOND
    for name in ("a", "b"):
        add_task(app, name)
        app.add_schedule(name, every=MINUTE)
    called: list[str] = []

    async def hang_once(connection: Any, job: Job) -> None:
        called.append(job.task)
        if called == ["a"]:
            await asyncio.sleep(600)

    app.hooks.on_enqueue.append(hang_once)
    worker = Schedules(app, hook_patience=0.1)
    report = await step(app, NOON, worker)
    # One that hangs is enough for one pass.
    assert (report.fired, report.failed) == (0, 1)
    assert report.next_in <= 0.5
    # A pass that leaves a slot alone for a quarter of the grace tells when that is over.
    report = await step(app, NOON, worker)
    assert (report.fired, report.failed) == (1, 0)
    assert report.next_in <= 10
    worker._hung["a"] -= 10
    assert (await step(app, NOON + SECOND, worker)).fired == 1
    # Once it has fired, it comes last no longer.
    assert (await step(app, NOON + MINUTE, worker)).fired == 2
    assert jobs(tables, "task") == ["b", "a", "a", "b"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit])
async def test_a_hook_that_would_end_the_program_does_not_stop_the_pass(
    app: Akadze, tables: Tables, error: type[BaseException]
) -> None:
    for name in ("a", "b"):
        add_task(app, name)
        app.add_schedule(name, every=MINUTE)

    def end_it(connection: Any, job: Job) -> None:
        if job.task == "a":
            raise error

    app.hooks.on_enqueue.append(end_it)
    report = await step(app, NOON)
    assert (report.fired, report.failed) == (1, 1)
    assert jobs(tables, "task") == ["b"]


async def test_a_hook_that_breaks_its_transaction_does_not_stop_the_pass(app: Akadze, tables: Tables) -> None:
    for name in ("a", "b"):
        add_task(app, name)
        app.add_schedule(name, every=MINUTE)

    async def break_it(connection: Any, job: Job) -> None:
        if job.task == "a":
            await connection.execute(text("select 1 / 0"))

    app.hooks.on_enqueue.append(break_it)
    report = await step(app, NOON)
    assert (report.fired, report.failed) == (1, 1)
    assert jobs(tables, "task") == ["b"]


@pytest.mark.parametrize(
    ("sleeping", "queue", "told"), [(True, "reports", 1), (False, "reports", 0), (True, "mail", 0)]
)
async def test_a_fire_wakes_a_worker_of_its_queue_that_sleeps(
    app: Akadze, tables: Tables, sleeping: bool, queue: str, told: int
) -> None:
    add_task(app, queue="reports")
    app.add_schedule("report", cron="0 12 * * *")
    tables.execute(
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl, sleeping)"
        " values (gen_random_uuid(), 'host', 1, %s, interval '1 minute', %s)",
        [[queue], sleeping],
    )
    tables.execute("listen akadze")
    assert (await step(app, NOON)).fired == 1
    # Notifications come in the order of commits: nothing of ours can come after this one.
    tables.execute("select pg_notify('akadze', 'end of test')")
    payloads = [notice.payload for notice in tables.notifies(timeout=5, stop_after=told + 1)]
    assert payloads == ["reports"] * told + ["end of test"]


# Beside other duties.


async def test_a_fire_does_not_wait_for_the_slow_hooks_of_many_jobs(
    app: Akadze, tables: Tables, table: Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten batches of expired jobs would take longer than the grace, and the slot would be lost."""

    async def slow(*_: object) -> None:
        await asyncio.sleep(0.05)

    monkeypatch.setattr(upkeep, "LONGEST", 0.5)
    app.hooks.on_transition.append(slow)
    app.grace = 2 * SECOND
    add_task(app)
    tables.execute("insert into akadze.jobs (task, expires_at) select 'mail', now() from generate_series(1, 1000)")
    app.add_schedule("report", every=(int(time.time()) + 2) * SECOND)  # one slot, two seconds from now
    await serve()
    await table.until("select exists (select from akadze.jobs where task = 'report')")
    assert tables.execute("select from akadze.jobs where task = 'mail' and state = 'queued' limit 1").rowcount == 1
