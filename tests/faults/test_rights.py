"""Contract, section 13: the roles of docs/security.md, made by its statements: what each can do, and what not."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.exc import ProgrammingError
from typer.testing import CliRunner

from akadze import Akadze, AkadzeError, DuplicateJob, current, sync
from akadze.cli import commands
from akadze.job import Job
from akadze.sync.metrics import render_metrics
from akadze.sync.testing import drain
from tests.faults.roles import SUFFIX, Roles, refused, refused_calls, roles, rows
from tests.processes import Starter
from tests.waiting import wait_until
from tests.worker.serving import workers
from tests.worker.table import Table

__all__ = ["roles"]

PAST = datetime(2000, 1, 1, tzinfo=UTC)


def command(url: str, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands.app, arguments, env={"AKADZE_DATABASE_URL": url})
    return done.exit_code, done.output


def register(app: Akadze) -> Any:
    @app.task("note", max_attempts=4, priority=2)
    def note(n: int) -> int:
        return n

    return note


def test_a_producer_enqueues_in_every_way(roles: Roles, database_url: str) -> None:
    app = Akadze(database_url=roles.url("producer"))
    note, seen = register(app), []
    app.hooks.on_enqueue.append(lambda connection, job: seen.append(job))
    until = datetime(2040, 1, 1, tzinfo=UTC)
    with app.sync_engine.begin() as connection:
        note.using(session=connection).enqueue(n=1)
        note.using(session=connection, unique_key="u", limit_key="k", meta={"a": 1.5}, expires_at=until).enqueue(n=2)
        with pytest.raises(DuplicateJob):
            note.using(session=connection, unique_key="u").enqueue(n=3)
        note.using(session=connection, delay=timedelta(days=1)).enqueue_many([{"n": 4}, {"n": 5}])
        # A holder of the key that is over is ended by the next enqueue.
        note.using(session=connection, unique_key="over", expires_at=PAST).enqueue(n=6)
        note.using(session=connection, unique_key="over").enqueue(n=7)
    app.hooks.on_enqueue.clear()
    with psycopg.connect(roles.url("producer")) as connection:
        note.using(session=connection).enqueue(n=8)
        note.using(session=connection).enqueue_many([{"n": 9}])
    app.close()

    stored = rows(database_url, "select cast(args ->> 'n' as integer), state from akadze.jobs order by id")
    assert stored == [(n, "cancelled" if n == 6 else "queued") for n in (1, 2, 4, 5, 6, 7, 8, 9)]
    assert [job.args for job in seen] == [{"n": n} for n in (1, 2, 4, 5, 6, 7)]
    [job_id] = rows(database_url, "select id from akadze.jobs where unique_key = 'u'")[0]
    assert seen[1] == Job(
        id=job_id,
        task="note",
        queue="default",
        priority=2,
        state="queued",
        args={"n": 2},
        run_count=0,
        attempt=0,
        max_attempts=4,
        snoozes=0,
        unique_key="u",
        limit_key="k",
        worker_id=None,
        errors=[],
        result=None,
        cancel_requested_at=None,
        expires_at=until,
        meta={"a": 1.5},
    )


async def test_a_producer_enqueues_in_async_code_and_wakes_a_sleeping_worker(roles: Roles, table: Table) -> None:
    producer, app = Akadze(database_url=roles.url("producer")), Akadze(database_url=roles.url("worker"))
    seen: list[int] = []
    producer.hooks.on_enqueue.append(lambda connection, job: seen.append(job.args["n"]))
    note = register(producer)
    register(app)
    async with workers(app, table) as serve:
        await serve(poll_interval=600)
        await table.until("select sleeping from akadze.workers")
        async with producer.engine.begin() as connection:
            await note.using(session=connection, unique_key="u").enqueue(n=1)
            with pytest.raises(DuplicateJob):
                await note.using(session=connection, unique_key="u").enqueue(n=1)
            await note.using(session=connection).enqueue_many([{"n": 2}])
        await table.until("select count(*) = 2 from akadze.jobs where state = 'succeeded'")
    assert seen == [1, 2]
    await producer.aclose()
    await app.aclose()


def test_a_producer_neither_reads_jobs_nor_writes_anything_else(roles: Roles, database_url: str) -> None:
    rows(database_url, "insert into akadze.jobs (task, state) values ('note', 'failed'), ('note', 'queued')")
    refused(
        roles.url("producer"),
        *[f"select {column} from akadze.jobs" for column in ("args", "result", "errors", "meta", "limit_key", "*")],
        "copy akadze.jobs to stdout",
        "insert into akadze.jobs (task, state) values ('note', 'succeeded')",
        "insert into akadze.jobs (task, result) values ('note', '1')",
        *[
            f"update akadze.jobs set {column} = {column}"
            for column in ("args", "task", "result", "worker_id", "run_at")
        ],
        "update akadze.jobs set cancel_requested_at = now()",
        "delete from akadze.jobs",
        "truncate akadze.jobs",
        "select pid from akadze.workers",
        "update akadze.workers set sleeping = true",
        "delete from akadze.workers",
        "select key from akadze.limits",
        "insert into akadze.limits (key, max_running) values ('k', 0)",
        "insert into akadze.queue_pauses (queue) values ('default')",
        "insert into akadze.periodic_runs (task, slot) values ('note', now())",
        "insert into akadze.limit_starts (key, started_at) values ('k', now())",
        "select version from akadze.schema_migrations",
        "create table akadze.mine ()",
        "alter table akadze.jobs add column mine integer",
        "drop table akadze.jobs",
        "drop schema akadze cascade",
    )
    refused_calls(
        roles.url("producer"),
        lambda connection: sync.list_jobs(connection),
        lambda connection: sync.requeue(connection, 1),
        lambda connection: sync.request_cancel(connection, 2),
        lambda connection: sync.pause_queue(connection, "default"),
        lambda connection: sync.set_limit(connection, "k", 1),
    )


def test_a_producer_may_cancel_where_the_page_lets_it(roles: Roles, database_url: str) -> None:
    [(job_id,)] = rows(database_url, "insert into akadze.jobs (task) values ('note') returning id")
    roles.run_block("producer-cancel")
    with psycopg.connect(roles.url("producer")) as connection:
        sync.request_cancel(connection, job_id)
    assert rows(database_url, "select cancel_requested_at is not null from akadze.jobs") == [(True,)]
    refused(roles.url("producer"), "select args from akadze.jobs", "update akadze.jobs set args = '{}'")


def test_a_producer_with_on_transition_hooks_needs_to_read_the_job_that_it_ends(
    roles: Roles, database_url: str
) -> None:
    app = Akadze(database_url=roles.url("producer"))
    note, seen = register(app), []
    app.hooks.on_transition.append(lambda connection, job, old, new: seen.append((job.args["n"], old, new)))
    with app.sync_engine.begin() as connection:
        note.using(session=connection, unique_key="over", expires_at=PAST).enqueue(n=1)
        with pytest.raises(ProgrammingError, match="permission denied"):
            note.using(session=connection, unique_key="over").enqueue(n=2)
    assert rows(database_url, "select state from akadze.jobs") == [("queued",)]
    roles.run_block("producer-hooks")
    with app.sync_engine.begin() as connection:
        note.using(session=connection, unique_key="over").enqueue(n=2)
    assert seen == [(1, "queued", "cancelled")]
    app.close()


async def add(table: Table, task: Any, **options: Any) -> int:
    """Enqueue a job as the role of its app, and return its id, which that may not ask the sequence for."""
    async with task.app.engine.begin() as connection:
        await task.using(session=connection, **options).enqueue()
    return int(await table.value("select max(id) from akadze.jobs"))


@pytest.mark.parametrize("fair", [False, True], ids=["", "fair"])
async def test_a_worker_does_all_of_its_work(roles: Roles, table: Table, fair: bool) -> None:
    second = timedelta(seconds=1)
    app = Akadze(database_url=roles.url("worker"), retention=second, grace=second)
    moves: list[str] = []

    @app.task("task", max_attempts=2, backoff=lambda attempt: timedelta(0))
    async def task() -> None:
        if current().job.run_count == 1:
            raise ValueError

    @app.task("completing", max_attempts=20, backoff=lambda attempt: timedelta(0))
    async def completing() -> None:
        async with current().complete_tx() as connection:
            await task.using(session=connection).enqueue()

    @app.periodic("tick", every=second, overlap=False)
    async def tick() -> None:
        pass

    app.hooks.on_transition.append(lambda connection, job, old, new: moves.append(new))
    app.hooks.on_enqueue.append(lambda connection, job: moves.append(job.state))
    with app.sync_engine.begin() as connection:
        sync.set_limit(connection, "k", 1, max_starts=100, window=timedelta(days=1))
        sync.set_limit(connection, "other", 1)
        sync.clear_limit(connection, "other")
        sync.pause_queue(connection, "default")
        sync.resume_queue(connection, "default")
    limited = [await add(table, task, limit_key="k") for _ in range(3)]
    other = await add(table, completing, unique_key="u")
    lost, expired = await add(table, task), await add(table, task, expires_at=PAST)
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=100), lost)
    [old] = await table.rows("insert into akadze.jobs (task) values ('task') returning id")
    await table.rows(
        "update akadze.jobs set state = 'failed', created_at = %s, finished_at = %s where id = %s",
        PAST,
        PAST,
        old["id"],
    )
    await table.rows("insert into akadze.limit_starts (key, started_at) values ('gone', now())")
    async with workers(app, table) as serve:
        await serve(slots=4, fair=fair)
        await table.until("select count(*) = 0 from akadze.jobs where id = any (%s)", [*limited, other, lost, expired])
        await table.until("select count(*) = 0 from akadze.jobs where id = %s", old["id"])
        await table.until("select count(*) > 0 from akadze.periodic_runs")
        await table.until("select count(*) = 0 from akadze.limit_starts where key = 'gone'")
        await table.until("select count(*) = 1 from akadze.workers")  # the row of the lost one is gone
    assert {"queued", "running", "succeeded", "cancelled"} <= set(moves)
    await app.aclose()


def test_a_worker_process_works_and_the_other_calls_need_no_more(
    roles: Roles, database_url: str, start_worker: Starter
) -> None:
    url = roles.url("worker")
    process = start_worker(
        """
        import os
        from akadze import Akadze

        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])

        @app.task("note", max_attempts=1)
        def note(n: int) -> int:
            return 1 // n
        """,
        environment={"AKADZE_DATABASE_URL": url},
    )
    app = Akadze(database_url=url)
    note = register(app)
    with app.sync_engine.begin() as connection:
        note.using(session=connection, max_attempts=1).enqueue_many([{"n": 1}, {"n": 0}])
    done = "select state from akadze.jobs order by id"
    wait_until(lambda: rows(database_url, done) == [("succeeded",), ("failed",)])
    process.terminate()
    assert process.wait() == 0
    failed = rows(database_url, "select id from akadze.jobs where state = 'failed'")[0][0]
    for arguments in (
        ["jobs", "requeue", str(failed)],
        ["jobs", "cancel", str(failed)],
        ["queues", "pause", "default"],
        ["queues", "resume", "default"],
        ["limits", "set", "k", "--max-running", "1"],
        ["limits", "clear", "k"],
        ["jobs", "show", str(failed), "--args"],
        ["metrics"],
        ["migrate"],  # there is nothing to do
    ):
        assert command(url, *arguments)[0] == 0, arguments
    drain(app)
    assert rows(database_url, done) == [("succeeded",), ("cancelled",)]
    app.close()


def test_a_worker_changes_no_table(roles: Roles) -> None:
    refused(
        roles.url("worker"),
        "insert into akadze.schema_migrations (version) values ('9999_mine')",
        "update akadze.schema_migrations set applied_at = now()",
        "delete from akadze.schema_migrations",
        "truncate akadze.jobs",
        "create table akadze.mine ()",
        "alter table akadze.jobs add column mine integer",
        "create index mine on akadze.jobs (task)",
        "drop table akadze.jobs",
        "drop schema akadze cascade",
    )


def test_a_reader_sees_metrics_and_lists(roles: Roles, database_url: str) -> None:
    rows(
        database_url,
        "insert into akadze.jobs (task, queue, args, meta) values ('note', 'mail', '{\"n\": 1}', '{\"a\": 1}')",
    )
    rows(database_url, "insert into akadze.limits (key, max_running) values ('k', 1)")
    rows(database_url, "insert into akadze.queue_pauses (queue) values ('mail')")
    url = roles.url("reader")
    app = Akadze(database_url=url)
    assert [job.task for job in sync.list_jobs(app.sync_engine, queue="mail", state="queued", meta={"a": 1})] == [
        "note"
    ]
    assert [limit.key for limit in sync.list_limits(app.sync_engine)] == ["k"]
    assert sync.list_workers(app.sync_engine) == ()
    assert list(sync.list_paused_queues(app.sync_engine)) == ["mail"]
    assert sync.queue_snapshot(app.sync_engine).busy == 0
    assert 'akadze_queue_paused{queue="mail"} 1' in render_metrics(app.sync_engine)
    assert sync.applied_versions(url) == sync.applied_versions(database_url)
    app.close()
    for arguments in ("jobs list", "queues list", "limits list", "workers list", "metrics"):
        code, output = command(url, *arguments.split())
        assert code == 0, output


def test_a_reader_neither_writes_nor_reads_arguments_results_and_errors(
    roles: Roles, database_url: str, start_worker: Starter
) -> None:
    rows(database_url, "insert into akadze.jobs (task, state) values ('note', 'failed'), ('note', 'queued')")
    ids = [str(job_id) for (job_id,) in rows(database_url, "select id from akadze.jobs order by id")]
    url = roles.url("reader")
    refused(
        url,
        *[f"select {column} from akadze.jobs" for column in ("args", "result", "errors", "unique_key", "*")],
        "copy akadze.jobs to stdout",
        "select key from akadze.limit_starts",
        "insert into akadze.jobs (task) values ('note')",
        "update akadze.jobs set state = 'queued'",
        "select id from akadze.jobs for update",
        "delete from akadze.jobs",
        "truncate akadze.jobs",
        *[
            f"delete from akadze.{table}"
            for table in ("workers", "limits", "queue_pauses", "limit_starts", "periodic_runs", "schema_migrations")
        ],
        "update akadze.workers set sleeping = true",
        "insert into akadze.queue_pauses (queue) values ('default')",
        "insert into akadze.limits (key, max_running) values ('k', 0)",
        "create table akadze.mine ()",
        "drop schema akadze cascade",
    )
    app = Akadze(database_url=url)
    note = register(app)
    refused_calls(
        url,
        lambda connection: note.using(session=connection).enqueue(n=1),
        lambda connection: note.using(session=connection).enqueue_many([{"n": 1}]),
        lambda connection: sync.requeue(connection, int(ids[0])),
        lambda connection: sync.request_cancel(connection, int(ids[1])),
        lambda connection: sync.pause_queue(connection, "default"),
        lambda connection: sync.resume_queue(connection, "default"),
        lambda connection: sync.set_limit(connection, "k", 1),
        lambda connection: sync.clear_limit(connection, "k"),
    )
    app.close()
    for arguments in (
        ["jobs", "show", ids[0]],
        ["jobs", "requeue", ids[0]],
        ["jobs", "cancel", ids[1]],
        ["queues", "pause", "default"],
        ["limits", "set", "k", "--max-running", "1"],
    ):
        code, output = command(url, *arguments)
        assert code == 1, arguments
        assert re.fullmatch(r"error: permission denied for table \w+\n", output), output
    process = start_worker(
        """
        import os
        from akadze import Akadze

        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
        app.register(lambda: None, name="note")
        """,
        environment={"AKADZE_DATABASE_URL": url},
    )
    assert process.wait() == 1
    assert "permission denied for table workers" in process.stderr
    assert "Traceback" not in process.stderr
    assert rows(database_url, "select state from akadze.jobs order by id") == [("failed",), ("queued",)]


def test_roles_without_grants_have_no_way_in(roles: Roles, database_url: str) -> None:
    """So that what the other tests find is what the page grants."""
    roles.execute(sql.SQL("drop owned by {}").format(sql.Identifier(f"akadze_producer{SUFFIX}")))
    app = Akadze(database_url=roles.url("producer"))
    note = register(app)
    with pytest.raises(ProgrammingError, match="permission denied"), app.sync_engine.begin() as connection:
        note.using(session=connection).enqueue(n=1)
    with pytest.raises((AkadzeError, psycopg.errors.InsufficientPrivilege)):
        sync.applied_versions(roles.url("producer"))
    app.close()
    assert rows(database_url, "select count(*) from akadze.jobs") == [(0,)]
