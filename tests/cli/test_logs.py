"""Contract, section 14: the log of `akadze worker`, and the errors that end it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from akadze.cli import process
from tests.cli.conftest import Table
from tests.cli.test_worker import FAST, HEAD, IDLE, SERVES, assert_clean, ended
from tests.processes import Starter
from tests.waiting import wait_until


def test_a_level_can_be_chosen(start_worker: Starter, table: Table) -> None:
    worker = start_worker(
        f"""{HEAD}
import logging

@app.task("mail")
async def mail() -> None:
    logging.getLogger("shop").info("too quiet")
    logging.getLogger("shop").warning("loud enough")
""",
        *(*FAST, "--log-level", "WARNING"),
    )
    job_id = table.insert()
    wait_until(lambda: ended(table, job_id))
    worker.terminate()
    assert_clean(worker)
    assert re.fullmatch(r"\S+ WARNING shop: loud enough\n", worker.stderr)


def test_a_warning_while_the_app_is_imported_has_the_same_form(start_worker: Starter) -> None:
    worker = start_worker(f"{HEAD}import logging\nlogging.getLogger('shop').warning('early')\n")
    assert_clean(worker, 1)
    assert re.match(r"\S+ WARNING shop: early\nerror: ", worker.stderr)


@pytest.mark.parametrize("options", [(), ("--log-level", "debug")])
def test_an_app_that_sets_up_logging_keeps_its_own_set_up(start_worker: Starter, options: tuple[str, ...]) -> None:
    worker = start_worker(
        f"{IDLE}\nimport logging\nlogging.basicConfig(level='INFO', format='[mine] %(name)s %(message)s')\n",
        *(*FAST, *options),
    )
    worker.wait_for_output(SERVES)
    worker.terminate()
    assert_clean(worker)
    assert worker.stderr.startswith("[mine] akadze.worker worker ")
    assert all(line.startswith("[mine] ") for line in worker.stderr.splitlines())


def test_what_a_logger_writes_by_a_handler_of_its_own_is_not_written_twice(start_worker: Starter) -> None:
    """Django's loggers do so while DEBUG is set."""
    worker = start_worker(
        f"""{IDLE}
import logging

own = logging.getLogger("shop")
own.addHandler(logging.StreamHandler())
own.handlers[0].setLevel("ERROR")
asked = []
counting = logging.getLogger("counting")
counting.addHandler(logging.StreamHandler())
counting.handlers[0].addFilter(lambda record: asked.append(record) or len(asked) == 1)
logging.getLogger("shop.stock").info("below its level")


@app.task("count")
async def count() -> None:
    logger = logging.getLogger("shop.stock")
    logger.info("info of a job")
    logger.error("error of a job")
    counting.error("counted once")


with app.sync_engine.begin() as connection:
    count.using(session=connection).enqueue()
""",
        *FAST,
    )
    worker.wait_for_output("counted once\n")
    worker.terminate()
    assert_clean(worker)
    assert worker.stderr.count("info of a job") == 1
    assert [line for line in worker.stderr.splitlines() if "error of a job" in line] == ["error of a job"]
    # A filter that may count is not asked again: rather twice than not at all.
    assert worker.stderr.count("counted once") == 2


def test_a_worker_that_loses_its_lease_ends_with_code_1_and_says_so(start_worker: Starter, table: Table) -> None:
    worker = start_worker(IDLE, "--poll-interval", "50ms", "--heartbeat-interval", "200ms", "--heartbeat-ttl", "2s")
    worker.wait_for_output(SERVES)
    table.rows("begin")
    table.rows("lock table akadze.workers in access exclusive mode")
    try:
        assert worker.wait() == 1
    finally:
        table.rows("rollback")
    (line,) = [line for line in worker.stderr.splitlines() if line.startswith("error: ")]
    assert "no heartbeat of this worker succeeded within 2 s" in line
    assert "Traceback" not in worker.stderr


def test_an_error_that_nobody_expected_is_told_with_its_traceback(start_worker: Starter) -> None:
    worker = start_worker(
        f"""{IDLE}
import akadze.worker

class Broken(akadze.worker.Worker):
    async def serve(self, stop: asyncio.Event) -> None:
        raise KeyError("fault")

akadze.worker.Worker = Broken
"""
    )
    assert worker.wait() == 1
    assert "Traceback" in worker.stderr
    assert worker.stderr.endswith("\nerror: KeyError: 'fault'\n")


def test_a_faster_loop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform == "win32":
        assert process._loop_factory() is asyncio.SelectorEventLoop
        return
    made = SimpleNamespace(new_event_loop=asyncio.new_event_loop)
    monkeypatch.setitem(sys.modules, "uvloop", made)
    assert process._loop_factory() is made.new_event_loop
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert process._loop_factory() is None


def test_help_needs_no_database_and_nothing_slow(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "sys.argv = ['akadze', 'jobs', 'list', '--help']\n"
        "from akadze.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    code = end.code\n"
        "slow = ('asyncio', 'psycopg', 'sqlalchemy', 'akadze.app', 'rich')\n"
        "print(json.dumps([code, [name for name in slow if name in sys.modules]]))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "AKADZE_DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
