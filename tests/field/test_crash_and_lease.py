"""Workers that die, freeze or go silent, and the jobs that they held."""

from __future__ import annotations

from tests.field.world import World

SLOW = """
@app.task(name="slow", max_attempts=3)
async def slow():
    with logged():
        await asyncio.sleep(60)
"""


def test_b001_jobs_of_a_worker_whose_row_is_gone_come_back(world: World) -> None:
    first = world.worker(SLOW)
    [job_id] = world.enqueue("slow", max_attempts=3)
    dead = world.in_state(job_id, "running")["worker_id"]
    first.kill()
    world.rows("delete from akadze.workers where id = %s", dead)
    world.worker(SLOW)

    world.until("select run_count = 2 from akadze.jobs where id = %s", job_id)

    job = world.job(job_id)
    assert (job["state"], job["attempt"]) == ("running", 1)
    assert world.value(
        "select bool_and(worker_id in (select id from akadze.workers)) from akadze.jobs where state = 'running'"
    )
