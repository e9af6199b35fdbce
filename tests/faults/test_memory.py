"""Contract, section 5: a worker process that has no memory left for what it is to send."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.families import few
from tests.field.conftest import world
from tests.field.world import World
from tests.waiting import wait_until

__all__ = ["world"]

SOURCE = """
import resource

async def told(name):
    while not Path(name).exists():
        await asyncio.sleep(0.02)

@app.task("returns", max_attempts=1)
async def returns(megabytes: int):
    await told("return")
    Path(f"returned {megabytes}").touch()  # nothing else runs before its outcome is there
    return "x" * (megabytes << 20)

@app.task("limits", max_attempts=1)
async def limits(megabytes: int):
    await told("limit")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    Path("limited").touch()

@app.task("quick", max_attempts=1)
async def quick():
    return "quick"
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell the size of a process")
# The text and its bytes need 40 MB each, and then libpq as much again.
@pytest.mark.parametrize("left", few([20, 60, 100], kept=[60]), ids=lambda left: f"{left} MB left for 40 MB")
def test_a_result_that_cannot_be_sent_fails_its_run_and_hurts_no_other(world: World, left: int) -> None:
    [big] = world.enqueue("returns", args={"megabytes": 40}, max_attempts=1)
    [small] = world.enqueue("returns", args={"megabytes": 0}, max_attempts=1)
    [limit] = world.enqueue("limits", args={"megabytes": left})
    worker = world.worker(SOURCE, slots=4, heartbeat_ttl=60)
    world.until("select count(*) = 3 from akadze.jobs where state = 'running'")
    with psycopg.connect(world.url) as holder:
        # While the worker waits for the table its outcomes gather; they go out together when there is little memory.
        holder.execute("lock table akadze.jobs in access exclusive mode")
        world.until("select count(*) > 0 from pg_locks where not granted and relation = 'akadze.jobs'::regclass")
        (world.directory / "return").touch()
        wait_until((world.directory / "returned 40").exists)
        (world.directory / "limit").touch()
        wait_until((world.directory / "limited").exists)
    assert world.in_state(small, "succeeded", "failed")["result"] == ""
    assert world.in_state(limit, "succeeded", "failed")["state"] == "succeeded"
    job = world.in_state(big, "succeeded", "failed")
    assert (job["state"], job["error_names"], job["attempt"]) == ("failed", ["ResultNotJson"], 1)
    assert "memory" in job["errors"][0]["message"]
    [quick] = world.enqueue("quick")
    assert world.in_state(quick, "succeeded", "failed")["result"] == "quick"
    assert worker.returncode is None
