"""Contract, sections 3 and 15: ids beyond 32 and 53 bits, and arguments beyond what a notification could carry."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from akadze import Akadze, current, list_jobs, queue_snapshot
from tests.cli.conftest import Cli, cli
from tests.families import FULL
from tests.field.world import World
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many

__all__ = ["cli"]

BIG = (2**53 + 1, 10**30)


@FULL
@pytest.mark.parametrize("first", [2**31 - 2, 2**53 - 1, 2**63 - 6], ids=["32 bits", "53 bits", "63 bits"])
async def test_b081_ids_and_integers_of_any_size_are_kept_to_the_last_digit(
    app: Akadze, table: Table, serve: Serve, cli: Cli, first: int
) -> None:
    given: dict[str, list[tuple[int, ...]]] = {}

    async def body(name: str, n: int, m: int) -> int:
        job = current().job
        given.setdefault(name, []).append((job.id, n, m))
        if name == "fail" and job.attempt == 0:
            raise ValueError("first")
        if name == "complete":
            async with current().complete_tx():
                pass
        if name == "back" and job.run_count == 1:
            await asyncio.sleep(600)
        return n

    task = app.register(body, name="f", max_attempts=1)
    n, m = BIG
    await table.rows(f"alter table akadze.jobs alter column id restart with {first}")
    names = ("succeed", "fail", "complete", "back", "lost", "cancel")
    jobs = {
        name: await enqueue(task, {"name": name, "n": n, "m": m}, max_attempts=2 if name == "lost" else 1)
        for name in names
    }
    assert [*jobs.values()] == [*range(first, first + 6)]
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=100), jobs["lost"])
    assert str(jobs["cancel"]) in cli("jobs", "cancel", str(jobs["cancel"])).stdout

    served = await serve(slots=5, shutdown_timeout=0)
    await table.ended(jobs["succeed"], jobs["fail"], jobs["complete"], jobs["cancel"])
    assert (await table.in_state(jobs["back"], "running"))["worker_id"] == served.id
    await served.stop()
    back = await table.job(jobs["back"])
    assert (back["state"], back["run_count"], back["attempt"]) == ("queued", 1, 0)
    assert (await table.job(jobs["fail"]))["state"] == "failed"
    assert str(jobs["fail"]) in cli("jobs", "requeue", str(jobs["fail"])).stdout
    await serve(slots=5)
    await table.ended(*jobs.values())

    rows = dict(zip(names, await table.jobs(*jobs.values()), strict=True))
    assert {name: row["state"] for name, row in rows.items()} == {
        **dict.fromkeys(names, "succeeded"),
        "cancel": "cancelled",
    }
    assert {row["result"] for name, row in rows.items() if name not in ("complete", "cancel")} == {n}
    assert rows["lost"]["error_names"] == ["WorkerLost"]
    runs = {"back": 2, "fail": 2}
    assert given == {name: [(jobs[name], n, m)] * runs.get(name, 1) for name in names if name != "cancel"}
    for flags in ([], ["--json"]):
        listed = cli("jobs", "list", *flags).stdout
        assert all(str(job) in listed for job in jobs.values())
        shown = cli("jobs", "show", str(jobs["lost"]), "--args", "--result", *flags).stdout
        assert all(str(number) in shown for number in (jobs["lost"], n, m))


#: Bodies that wait for their end in their first run, and return their argument in the next.
_WAITING = """
@app.task("f", max_attempts=2)
async def f(n: int):
    if current().job.run_count == 1:
        await asyncio.sleep(600)
    return n
"""


def test_b081_processes_hand_back_and_rescue_jobs_of_any_id(world: World) -> None:
    first = 2**53 - 1
    world.rows(f"alter table akadze.jobs alter column id restart with {first}")
    dying = world.worker(_WAITING, slots=2, heartbeat_interval=0.2, heartbeat_ttl=1)
    jobs = world.enqueue("f", 2, args={"n": BIG[1]}, max_attempts=2)
    world.until("select count(*) = 2 from akadze.jobs where state = 'running'")
    dying.kill()
    stopping = world.worker(_WAITING, "--queue", "back", slots=2, shutdown_timeout=0)
    jobs += world.enqueue("f", 2, queue="back", args={"n": BIG[0]}, max_attempts=2)
    world.until("select count(*) = 2 from akadze.jobs where state = 'running' and queue = 'back'")
    stopping.terminate()
    assert stopping.wait() == 0
    assert jobs == [*range(first, first + 4)]
    assert {(world.job(job)["state"], world.job(job)["attempt"]) for job in jobs[2:]} == {("queued", 0)}

    world.worker(_WAITING, "--queue", "default", "--queue", "back", slots=4)

    found = [world.in_state(job, "succeeded", "failed") for job in jobs]
    assert [row["result"] for row in found] == [BIG[1]] * 2 + [BIG[0]] * 2
    assert [(row["run_count"], row["error_names"]) for row in found] == [(2, ["WorkerLost"])] * 2 + [(2, [])] * 2


async def quickest(call: Callable[[], Awaitable[Any]]) -> float:
    """The shortest of three times in seconds: the machine may be busy."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        await call()
        times.append(time.monotonic() - began)
    return min(times)


#: Lists in a process of its own: of a queue without jobs, then of all, and the most memory so far after each, in KiB.
_LISTS = """
from pathlib import Path
from akadze.cli.commands import app

for options in (["--queue", "none"], ["--limit", "1000"]):
    app(["jobs", "list", *options], standalone_mode=False)
    status = Path("/proc/self/status").read_text()
    print(*[line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")])
"""


def memory_of_lists(url: str) -> tuple[int, int, int]:
    """Return how many lines the list of all jobs has, and the memory before and after it."""
    done = subprocess.run(
        [sys.executable, "-c", _LISTS],
        env={**os.environ, "AKADZE_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=True,
    )
    before, *lines, after = done.stdout.splitlines()
    return len(lines), int(before), int(after)


@FULL
@pytest.mark.heavy
async def test_b086_large_arguments_are_enqueued_run_and_never_listed(
    app: Akadze, database_url: str, table: Table, serve: Serve, full: bool
) -> None:
    async def f(s: str) -> int:
        return len(s)

    task = app.register(f, name="f")
    sizes = [7_900, 8_100, 1_000_000, 20_000_000 if full else 2_000_000]
    many = 1000 if full else 100
    # The lease is long: on a slow machine the loop stands still for seconds while it reads the largest.
    served = await serve(slots=10, heartbeat_ttl=60)
    # From here on an enqueue notifies.
    await table.until("select sleeping from akadze.workers")
    jobs = [await enqueue(task, {"s": "x" * size}) for size in sizes]
    await table.ended(*jobs)
    jobs += await enqueue_many(task, [{"s": "y" * 9_000}] * many)
    await table.until(f"select count(*) = {len(jobs)} from akadze.jobs where state = 'succeeded'")
    assert [row["result"] for row in await table.rows("select result from akadze.jobs order by id")] == [
        *sizes,
        *[9_000] * many,
    ]
    assert served.up
    await served.stop()

    await table.rows(
        "update akadze.jobs set state = 'queued', finished_at = null,"
        " args = jsonb_build_object('s', repeat('x', 20000000)) where id = %s",
        jobs[0],
    )
    async with app.engine.connect() as connection:
        assert await quickest(lambda: list_jobs(connection, limit=1000)) < 1
        assert await quickest(lambda: queue_snapshot(connection)) < 1
    if sys.platform == "linux":
        lines, before, after = await asyncio.to_thread(memory_of_lists, database_url)
        assert lines == min(len(jobs), 1000)
        assert after - before < 10_000
