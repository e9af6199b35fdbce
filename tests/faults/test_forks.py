"""An app that was used before the process forked, as a web server that loads the application first does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_app_may_be_used_on_both_sides_of_a_fork(colour: str, database_url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, colour],
        env={**os.environ, "AKADZE_DATABASE_URL": database_url},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with psycopg.connect(database_url) as connection:
        counts = connection.execute("select args ->> 'who', count(*) from akadze.jobs group by 1 order by 1").fetchall()
    assert counts == [("0", 31 if colour == "sync" else 1), ("1", 30), ("2", 30), ("3", 30)]
