"""Contract, section 8: a signal to a process that a task has forked is none to its worker."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Table
from tests.cli.test_worker import FAST, ended
from tests.families import few
from tests.processes import Starter
from tests.waiting import wait_until

SOURCE = """
import asyncio, multiprocessing, os, signal, time
from akadze import Akadze

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
fork = multiprocessing.get_context("fork")


def square(number):
    return number * number


@app.task("pool", max_attempts=1)
def pool():
    with fork.Pool(2) as processes:  # terminates them at its end
        return processes.map(square, range(4))


@app.task("child", max_attempts=1)
async def child():
    process = fork.Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    await asyncio.to_thread(process.join)
    return process.exitcode


@app.task("interrupted", max_attempts=1)
def interrupted():
    pid = os.fork()
    if pid == 0:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(600)
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(8)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.task("after", max_attempts=1)
async def after():
    return "still here"
"""


@pytest.mark.parametrize(
    ("task", "result"), few([("pool", [0, 1, 4, 9]), ("child", -15), ("interrupted", 7)], kept=[("pool", [0, 1, 4, 9])])
)
def test_a_forked_child_has_the_signals_of_any_process_and_its_worker_goes_on(
    start_worker: Starter, table: Table, task: str, result: object
) -> None:
    worker = start_worker(SOURCE, *FAST, "--slots", "2")
    job_id = table.insert(task=task)
    wait_until(lambda: ended(table, job_id))
    assert (table.job(job_id)["state"], table.job(job_id)["result"]) == ("succeeded", result)
    after = table.insert(task="after")
    wait_until(lambda: ended(table, after))
    worker.terminate()
    assert worker.wait() == 0
    assert worker.stderr.count("stops: ") == 1
