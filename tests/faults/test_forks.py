"""Contract, section 1: an app that was used before a fork, as by a web server that loads the application first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.processes import Starter
from tests.waiting import wait_until

# Each process enqueues on the engines that it has from the parent; a pool that all share would mix their answers up.
PROGRAM = """
import asyncio, os, sys
from akadze import Akadze

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])

@app.task("task")
async def task(who: int, number: int) -> None: ...

def send_sync(who, count):
    for number in range(count):
        with app.sync_engine.begin() as connection:
            task.using(session=connection).enqueue(who=who, number=number)

async def send_async(who, count):
    for number in range(count):
        async with app.engine.begin() as connection:
            await task.using(session=connection).enqueue(who=who, number=number)

def send(who, count):
    send_sync(who, count) if sys.argv[1] == "sync" else asyncio.run(send_async(who, count))

send(0, 1)
children = []
for who in range(1, 4):
    child = os.fork()
    if child == 0:
        send(who, 30)
        os._exit(0)
    children.append(child)
if sys.argv[1] == "sync":
    send(0, 30)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children) != 0)
"""


FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(program: str, database_url: str, *arguments: str) -> None:
    """Run a program to its end, which has to be a good one."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "AKADZE_DATABASE_URL": database_url},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def counts(database_url: str) -> list[tuple[str, int]]:
    with psycopg.connect(database_url) as connection:
        return connection.execute("select args ->> 'who', count(*) from akadze.jobs group by 1 order by 1").fetchall()


@FORKS
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_app_may_be_used_on_both_sides_of_a_fork(colour: str, database_url: str) -> None:
    run(PROGRAM, database_url, colour)
    assert counts(database_url) == [("0", 31 if colour == "sync" else 1), ("1", 30), ("2", 30), ("3", 30)]


# The child uses the app while its parent is in the middle of a transaction, on a connection that both have.
OPEN_TRANSACTION = """
import os
from akadze import Akadze
from akadze.sync import list_jobs

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])

@app.task("task")
async def task(who: int, number: int) -> None: ...

with app.sync_engine.begin() as connection:
    task.using(session=connection).enqueue(who=0, number=0)
    child = os.fork()
    if child == 0:
        assert list_jobs(app.sync_engine) == ()  # on a connection of its own, which does not see what is open
        os._exit(7)
    assert os.waitpid(child, 0)[1] == 7 << 8
    task.using(session=connection).enqueue(who=0, number=1)
"""


@FORKS
def test_a_child_that_uses_the_app_leaves_the_open_transaction_of_its_parent_alone(database_url: str) -> None:
    run(OPEN_TRANSACTION, database_url)
    assert counts(database_url) == [("0", 2)]


# As a supervisor does that loads the application, uses it, and forks its workers.
WORKERS = """
import asyncio, os, sys
from akadze import Akadze, Worker, current

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])

@app.task("task", max_attempts=1)
async def task(who: int, number: int) -> int:
    async with current().complete_tx() as connection:
        await connection.exec_driver_sql("select 1")
    return os.getpid()

async def send() -> None:
    async with app.engine.begin() as connection:
        await task.using(session=connection).enqueue_many([{"who": 0, "number": n} for n in range(100)])

async def serve() -> None:
    stop = asyncio.Event()
    serving = asyncio.create_task(Worker(app, slots=3).serve(stop))
    while True:
        async with app.engine.connect() as connection:
            left = await connection.exec_driver_sql("select count(*) from akadze.jobs where state <> 'succeeded'")
            if left.scalar_one() == 0:
                break
        await asyncio.sleep(0.02)
    stop.set()
    await serving

asyncio.run(send())
with app.sync_engine.connect() as connection:
    connection.exec_driver_sql("select 1")
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        asyncio.run(serve())
        sys.exit(0)
    children.append(child)
asyncio.run(serve())
sys.exit(sum(os.waitpid(child, 0)[1] for child in children) != 0)
"""


@FORKS
def test_workers_may_be_forked_from_a_process_that_has_used_the_app(database_url: str) -> None:
    run(WORKERS, database_url)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select distinct state, run_count, attempt from akadze.jobs").fetchall()
        assert rows == [("succeeded", 1, 0)]
        assert connection.execute("select count(*) from akadze.workers").fetchone() == (0,)


BODIES = """
import asyncio, multiprocessing, os, subprocess
from akadze import Akadze

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])

@app.task("quick", max_attempts=1)
async def quick(number: int) -> int:
    return number

def send(number: int) -> None:
    with app.sync_engine.begin() as connection:
        quick.using(session=connection).enqueue(number=number)

@app.task("forks", max_attempts=1)
def forks(number: int) -> None:
    send(number)
    child = multiprocessing.get_context("fork").Process(target=send, args=[number + 1])
    child.start()
    child.join()
    assert child.exitcode == 0
    send(number + 2)

@app.task("spawns", max_attempts=1)
async def spawns() -> str:
    listing = await asyncio.create_subprocess_exec("ls", "-l", "/proc/self/fd", stdout=subprocess.PIPE)
    return (await listing.communicate())[0].decode()
"""


@FORKS
def test_a_body_may_fork_and_its_child_may_use_the_app(start_worker: Starter, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into akadze.jobs (task, args, max_attempts)"
            " select 'forks', jsonb_build_object('number', 3 * n), 1 from generate_series(0, 9) n"
        )
        worker = start_worker(BODIES, "--slots", "3", "--poll-interval", "50ms")

        def all_done() -> bool:
            row = connection.execute(
                "select count(*) = 40 and bool_and(state = 'succeeded' and run_count = 1) from akadze.jobs"
            ).fetchone()
            assert worker.returncode is None
            return row is not None and bool(row[0])

        wait_until(all_done)
        sent = connection.execute("select result from akadze.jobs where task = 'quick' order by 1").fetchall()
        assert [number for (number,) in sent] == list(range(30))
    assert "out of reach" not in worker.stderr
    worker.terminate()
    assert worker.wait() == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files in /proc")
def test_a_program_that_a_body_starts_inherits_no_connection(start_worker: Starter, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into akadze.jobs (task, max_attempts) values ('spawns', 1)")
        start_worker(BODIES, "--poll-interval", "50ms")

        def listing() -> str | None:
            row = connection.execute("select result from akadze.jobs where state = 'succeeded'").fetchone()
            return None if row is None else str(row[0])

        listed = wait_until(listing)
    assert "/dev/null" in listed
    assert "socket:" not in listed
