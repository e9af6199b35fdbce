"""Contract, sections 13 and 15: migrations that race or die, and what rights akadze needs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from akadze import (
    Akadze,
    applied_versions,
    dev,
    list_jobs,
    list_limits,
    list_paused_queues,
    list_workers,
    metrics,
    queue_snapshot,
    sync,
)
from akadze.sync.metrics import render_metrics
from tests.database import create_database
from tests.families import FULL
from tests.field.world import World
from tests.processes import Process, Starter
from tests.schema.conftest import Role, of_this_process
from tests.schema.test_migrate_at_once import Processes
from tests.waiting import wait_until

APP, RUN, READ = (of_this_process(f"akadze_test_{name}") for name in ("app", "run", "read"))

WORKER = """
from datetime import timedelta

@app.task(name="note", queue="default")
async def note_it():
    return "done"

@app.task(name="complete")
def complete():
    with akadze.sync.current().complete_tx() as connection:
        note_it.using(session=connection, unique_key="u", limit_key="k").enqueue()

@app.periodic("tick", every=timedelta(seconds=1))
async def tick():
    pass
"""


def run(url: str, *statements: str) -> list[Any]:
    """Run statements one by one, and return the rows of the last."""
    with psycopg.connect(url, autocommit=True) as connection:
        answer: list[Any] = []
        for statement in statements:
            cursor = connection.execute(statement)
            answer = cursor.fetchall() if cursor.description else []
        return answer


def command(start: Starter, url: str, *arguments: str) -> Process:
    return start.command(*arguments, environment={"AKADZE_DATABASE_URL": url})


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "stderr")
    yield processes
    processes.close()


@pytest.fixture
def world_of(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    """A world on a database that is migrated already, or that the role of the URL may migrate."""
    worlds: list[World] = []

    def make(url: str) -> World:
        worlds.append(World(tmp_path, url))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


@FULL
@pytest.mark.heavy(minutes=2)
def test_b121_commands_that_migrate_at_once_all_succeed(
    empty_database_url: str, start_worker: Starter, database_url: str, full: bool
) -> None:
    versions = sync.applied_versions(database_url)
    for round_ in range(10 if full else 1):
        if round_:
            run(empty_database_url, "drop schema akadze cascade")
        for count in (10, 5) if full else (4, 1):
            started = [command(start_worker, empty_database_url, "migrate") for _ in range(count)]
            assert [process.wait(120) for process in started] == [0] * count
            assert [process.stderr for process in started] == [""] * count
            assert sync.applied_versions(empty_database_url) == versions


@FULL
def test_b122_a_role_without_superuser_installs_and_uses_everything(
    empty_database_url: str, role: Role, start_worker: Starter, world_of: Callable[[str], World]
) -> None:
    url = role(APP, empty_database_url)
    [(name,)] = run(empty_database_url, "select quote_ident(current_database())")
    extensions = run(empty_database_url, "select extname, extversion from pg_extension")
    run(
        empty_database_url,
        # The run log of the bodies is no part of what the case is about.
        f"grant create, usage on schema public to {APP}",
        f"grant connect, create on database {name} to {APP}",
    )
    migrated = command(start_worker, url, "migrate")
    assert migrated.wait() == 0, migrated.stderr
    world = world_of(url)
    [job_id] = world.enqueue("note", unique_key="k", limit_key="k", meta={"a": 1})
    world.worker(WORKER, slots=2)
    assert world.in_state(job_id, "succeeded", "failed")["result"] == "done"
    world.until("select count(*) > 0 from akadze.jobs where task = 'tick' and state = 'succeeded'")
    commands = [
        world.command(*arguments.split())
        for arguments in ("jobs list", "queues pause other", "limits set k --max-running 1", "workers list", "metrics")
    ]
    assert [(process.wait(60), process.stderr) for process in commands] == [(0, "")] * len(commands)
    assert run(empty_database_url, "select extname, extversion from pg_extension") == extensions
    assert run(empty_database_url, f"select rolsuper from pg_roles where rolname = '{APP}'") == [(False,)]


def grant_run(name: str) -> list[str]:
    return [
        f"grant usage on schema akadze to {name}",
        f"grant select, insert, update, delete on all tables in schema akadze to {name}",
        f"grant usage on all sequences in schema akadze to {name}",
    ]


def grant_read(name: str) -> list[str]:
    return [f"grant usage on schema akadze to {name}", f"grant select on all tables in schema akadze to {name}"]


def read_everything(url: str) -> None:
    app = Akadze(database_url=url)
    assert {job.task for job in sync.list_jobs(app.sync_engine, meta={"a": 1})} == {"note"}
    assert [limit.key for limit in sync.list_limits(app.sync_engine)] == ["k"]
    sync.list_workers(app.sync_engine)
    sync.list_paused_queues(app.sync_engine)
    assert sync.queue_snapshot(app.sync_engine).counts
    assert 'akadze_jobs{queue="default",state=' in render_metrics(app.sync_engine)
    assert sync.applied_versions(url) != []
    app.close()
    asyncio.run(read_everything_async(url))


async def read_everything_async(url: str) -> None:
    app = Akadze(database_url=url)
    assert {job.task for job in await list_jobs(app.engine, meta={"a": 1})} == {"note"}
    assert [limit.key for limit in await list_limits(app.engine)] == ["k"]
    await list_workers(app.engine)
    await list_paused_queues(app.engine)
    assert (await queue_snapshot(app.engine)).counts
    assert 'akadze_jobs{queue="default",state=' in await metrics.render_metrics(app.engine)
    assert await applied_versions(url) != []
    await app.aclose()


#: Commands that read, and what they print of the rows on the standby.
READING = {
    "jobs list": " task=note queue=default state=queued ",
    "jobs show 1": "\nid=1 task=note queue=default state=queued ",
    "queues list": "\nqueue=default paused=false queued=1 ",
    "limits list": "\nkey=k max_running=1 ",
    "workers list": " hostname=afar pid=7 ",
    "metrics": '\nakadze_jobs{queue="default",state="queued"} 1\n',
}


def test_b124_a_worker_needs_to_read_and_write_rows_and_readers_to_read(
    world: World, role: Role, tmp_path: Path
) -> None:
    runs, reads = role(RUN, world.url), role(READ, world.url)
    run(world.url, *grant_run(RUN), *grant_read(READ))
    app = Akadze(database_url=runs)

    def note() -> None: ...

    registered = [app.register(note, name=name) for name in ("note", "complete")]
    with app.sync_engine.begin() as connection:
        sync.set_limit(connection, "k", 1)
        for task in registered:
            task.using(session=connection, limit_key="k", meta={"a": 1} if task.name == "note" else None).enqueue()
    app.close()
    world.worker(WORKER, environment={"AKADZE_DATABASE_URL": runs})
    world.until("select count(*) = 3 from akadze.jobs where state = 'succeeded' and task in ('note', 'complete')")
    world.until("select count(*) > 0 from akadze.jobs where task = 'tick' and state = 'succeeded'")
    assert world.value(f"select count(*) > 1 from pg_stat_activity where usename = '{RUN}'")
    read_everything(reads)


def test_b124_readers_read_on_a_hot_standby(own_server: dev.Server, start_worker: Starter) -> None:
    url = create_database(own_server.url(), "akadze_standby_test")
    sync.migrate(url)
    run(
        url,
        f"create role {READ} login password 'test'",
        *grant_read(READ),
        "insert into akadze.jobs (task, meta) values ('note', '{\"a\": 1}')",
        "insert into akadze.limits (key, max_running) values ('k', 1)",
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
        " values (gen_random_uuid(), 'afar', 7, '{default}', interval '30 s')",
    )
    own_server.stop("fast")
    (own_server.directory / "data" / "standby.signal").touch()
    own_server.start()
    reads = make_url(url).set(username=READ, password="test").render_as_string(hide_password=False)
    assert run(url, "select pg_is_in_recovery()") == [(True,)]
    commands = {line: command(start_worker, reads, *line.split()) for line in READING}
    read_everything(reads)
    for line, process in commands.items():
        assert (process.wait(), process.stderr) == (0, "")
        assert READING[line] in f"\n{process.stdout}"


def test_b124_a_worker_on_a_database_never_migrated_says_what_to_run(
    empty_database_url: str, start_worker: Starter
) -> None:
    assert sync.applied_versions(empty_database_url) == []
    (
        process := start_worker(
            """
        import os
        from akadze import Akadze
        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
        app.register(lambda: None, name="task")
        """,
            environment={"AKADZE_DATABASE_URL": empty_database_url},
        )
    ).wait()
    assert process.returncode == 1
    assert "run `akadze migrate` on it first" in process.stderr
    assert "Traceback" not in process.stderr
    assert run(empty_database_url, "select nspname from pg_namespace where nspname = 'akadze'") == []


@FULL
def test_b126_a_migration_that_was_killed_any_number_of_times_can_be_applied(
    empty_database_url: str, processes: Processes, database_url: str, start_worker: Starter
) -> None:
    chance = random.Random(126)
    ends = []
    for _ in range(30):
        [process] = processes.start(1, empty_database_url)
        time.sleep(chance.uniform(0.001, 0.03))  # any moment of its work is the point
        with suppress(ProcessLookupError):  # it was quicker
            os.kill(process, signal.SIGKILL)
        ends += processes.ends()
    assert set(ends) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in ends
    last = command(start_worker, empty_database_url, "migrate")
    assert (last.wait(), last.stderr) == (0, "")
    assert sync.applied_versions(empty_database_url) == sync.applied_versions(database_url)


def test_b126_a_schema_that_was_dropped_under_a_worker_can_be_migrated_again(world: World) -> None:
    old = world.worker(WORKER)

    def dropped() -> bool:
        # It locks one table after another, and the worker in another order: either may be the victim of a deadlock.
        try:
            world.rows("drop schema akadze cascade")
        except psycopg.errors.DeadlockDetected:
            return False
        return True

    wait_until(dropped)
    migrated = world.command("migrate")
    assert (migrated.wait(), migrated.stderr) == (0, "")
    [job_id] = world.enqueue("note")
    wait_until(lambda: old.returncode is not None or world.job(job_id)["state"] == "succeeded")
    if old.returncode is not None:
        assert old.returncode == 1
        assert "akadze" in old.stderr
        world.worker(WORKER)
    assert world.in_state(job_id, "succeeded")["result"] == "done"
