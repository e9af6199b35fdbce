"""Contract, sections 8 and 14: `akadze worker` as a process: signals, exit codes, and an end that nothing holds up."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Table
from tests.families import FULL, few
from tests.processes import Process, Starter
from tests.waiting import wait_until

HEAD = """
import asyncio, os, signal, threading, time
from akadze import Akadze

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
"""
IDLE = f"""{HEAD}
@app.task("mail")
async def mail() -> str:
    return "sent"
"""
FAST = ("--poll-interval", "50ms", "--heartbeat-interval", "200ms", "--heartbeat-ttl", "20s")
SERVES = "serves queues"


def ended(table: Table, job_id: int) -> bool:
    return table.job(job_id)["state"] in ("succeeded", "failed", "cancelled")


def assert_clean(worker: Process, code: int = 0) -> None:
    assert worker.wait() == code
    assert "Traceback" not in worker.stderr
    assert "Exception ignored" not in worker.stderr


def rows_of_workers(table: Table) -> list[dict[str, Any]]:
    return table.rows("select id from akadze.workers")


@pytest.mark.parametrize("signal", ["terminate", "interrupt"])
def test_a_signal_stops_an_idle_worker_with_code_0(start_worker: Starter, table: Table, signal: str) -> None:
    worker = start_worker(IDLE, *FAST)
    worker.wait_for_output(SERVES)
    job_id = table.insert()
    wait_until(lambda: ended(table, job_id))
    getattr(worker, signal)()
    assert_clean(worker)
    assert table.job(job_id)["result"] == "sent"
    assert rows_of_workers(table) == []


def test_the_log_has_one_line_for_an_event_with_time_level_and_logger(start_worker: Starter) -> None:
    worker = start_worker(IDLE, *FAST)
    worker.wait_for_output(SERVES)
    worker.terminate()
    assert_clean(worker)
    for line in worker.stderr.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 INFO akadze\.worker: worker ", line)
    assert worker.stdout == ""


@pytest.mark.parametrize("pause", few([0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0], kept=[0.3, 0.6, 1.0, 1.6]))
def test_a_signal_while_it_starts_ends_it_with_code_0(start_worker: Starter, pause: float) -> None:
    worker = start_worker(IDLE, *FAST)
    time.sleep(pause)  # the moment is what is tested; any moment will do
    worker.terminate()
    assert_clean(worker)


@pytest.mark.parametrize(
    "before", [(), ("--database-url", "postgresql://db/app"), ("--database-url=postgresql://db/app",)]
)
def test_a_signal_while_the_app_is_imported_ends_it_with_code_0(
    start_worker: Starter, tmp_path: Path, before: tuple[str, ...]
) -> None:
    (tmp_path / "slow.py").write_text(f"{HEAD}print('importing', flush=True)\ntime.sleep(600)\n")
    worker = start_worker.command(*before, "worker", "slow:app")
    worker.wait_for_output("importing")
    worker.terminate()
    assert_clean(worker)
    assert worker.stderr == ""


def test_a_signal_while_the_database_does_not_answer_ends_it_with_code_0(start_worker: Starter) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/app"
        worker = start_worker(IDLE, *FAST, environment={"AKADZE_DATABASE_URL": url})
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            worker.terminate()
            assert_clean(worker)


def test_running_jobs_may_end_before_the_worker_does(start_worker: Starter, table: Table) -> None:
    worker = start_worker(
        f"""{HEAD}
@app.task("mail")
async def mail() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(1)
    return "sent"
""",
        *FAST,
    )
    job_id = table.insert()
    assert_clean(worker)
    assert table.job(job_id)["result"] == "sent"


def test_a_second_signal_hands_running_jobs_back_at_once(start_worker: Starter, table: Table) -> None:
    worker = start_worker(
        f"""{HEAD}
@app.task("mail")
async def mail() -> None:
    print("running", flush=True)
    await asyncio.sleep(600)
""",
        *(*FAST, "--shutdown-timeout", "10m"),
    )
    job_id = table.insert()
    worker.wait_for_output("running")
    worker.terminate()
    worker.wait_for_output("1 jobs still run")
    worker.terminate()
    assert_clean(worker)
    job = table.job(job_id)
    assert (job["state"], job["attempt"], job["worker_id"]) == ("queued", 0, None)


STUBBORN = """
@app.task("mail")
async def mail() -> None:
    print("running", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass
"""
BLOCKING = """
@app.task("mail")
def mail() -> None:
    print("running", flush=True)
    time.sleep(600)
"""
IN_A_THREAD = """
@app.task("mail")
async def mail() -> None:
    print("running", flush=True)
    await asyncio.to_thread(time.sleep, 600)
"""
LEFT_BEHIND = """
@app.task("mail")
async def mail() -> None:
    async def endless() -> None:
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

    app.left = asyncio.create_task(endless())
    threading.Thread(target=time.sleep, args=(600,), name="left").start()
    print("running", flush=True)
    await asyncio.sleep(600)
"""


@pytest.mark.parametrize("body", few([STUBBORN, BLOCKING, IN_A_THREAD, LEFT_BEHIND], kept=[STUBBORN, IN_A_THREAD]))
def test_a_body_that_does_not_end_cannot_hold_up_the_exit(start_worker: Starter, table: Table, body: str) -> None:
    worker = start_worker(HEAD + body, *FAST, "--shutdown-timeout", "1")
    job_id = table.insert()
    worker.wait_for_output("running")
    worker.terminate()
    assert worker.wait() == 0
    assert "Traceback" not in worker.stderr
    job = table.job(job_id)
    assert (job["state"], job["attempt"]) == ("queued", 0)
    assert rows_of_workers(table) == []
    if body is STUBBORN:
        assert f"job {job_id} of task mail does not stop" in worker.stderr
    if body is LEFT_BEHIND:
        assert "the process ends without waiting for" in worker.stderr


def test_exit_handlers_run_at_a_clean_end(start_worker: Starter) -> None:
    worker = start_worker(f"{IDLE}\nimport atexit\natexit.register(print, 'bye')\n", *FAST)
    worker.wait_for_output(SERVES)
    worker.terminate()
    assert_clean(worker)
    assert worker.stdout == "bye\n"


def test_an_error_that_stops_the_worker_is_told_in_one_line_with_code_1(start_worker: Starter, table: Table) -> None:
    worker = start_worker(IDLE, *FAST)
    worker.wait_for_output(SERVES)
    table.rows("drop schema akadze cascade")
    assert_clean(worker, 1)
    (line,) = [line for line in worker.stderr.splitlines() if line.startswith("error: ")]
    assert "akadze." in line
    assert "does not exist" in line


def test_a_database_that_is_not_migrated_stops_the_worker_at_its_start(
    start_worker: Starter, empty_database_url: str
) -> None:
    worker = start_worker(IDLE, environment={"AKADZE_DATABASE_URL": empty_database_url})
    assert_clean(worker, 1)
    (line,) = worker.stderr.splitlines()
    assert line.startswith("error: ")
    assert "akadze migrate" in line


def test_an_app_without_tasks_stops_the_worker_at_its_start(start_worker: Starter) -> None:
    worker = start_worker(HEAD)
    assert_clean(worker, 1)
    assert worker.stderr == (
        "error: the app has no tasks: register them (app.task, app.include) before the worker starts\n"
    )


@pytest.mark.parametrize(
    ("returned", "code", "said"),
    [
        ("'mysql://ada:secret@db/app'", 2, "the database URL begins with mysql://"),
        ("''", 2, "the database URL is empty; give one that begins with postgresql://"),
        (
            "None",
            2,
            "the database URL must be a str, not NoneType; of a SQLAlchemy URL pass url.render_as_string(hide_",
        ),
        (
            "os.environ['AKADZE_NOSUCH']",
            2,
            "the app's database_url reads the variable 'AKADZE_NOSUCH', which is not set",
        ),
        ("{}['nosuch']", 1, "KeyError: 'nosuch'"),
        ("str(1 / 0)", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_that_gives_no_url_is_wrong_use_told_in_one_line_or_with_its_own_error(
    start_worker: Starter, returned: str, code: int, said: str
) -> None:
    worker = start_worker(
        IDLE.replace("database_url=", "database_url=lambda: ").replace('os.environ["AKADZE_DATABASE_URL"]', returned)
    )
    assert worker.wait() == code
    told = worker.stderr.splitlines()
    assert told[-1].startswith(f"error: {said}")
    assert "secret" not in worker.stderr
    if code == 1:
        assert worker.stderr.count("Traceback") == 1
        assert f"in <lambda>\n    app = Akadze(database_url=lambda: {returned})" in worker.stderr
    else:
        assert len(told) == 1


def test_a_database_that_is_away_at_the_start_is_told_without_the_password(start_worker: Starter) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"postgresql://ada:secret@127.0.0.1:{holder.getsockname()[1]}/app"
        worker = start_worker(IDLE, environment={"AKADZE_DATABASE_URL": url})
        assert_clean(worker, 1)
        assert worker.stderr.startswith("error: ")
        assert worker.stderr.count("\n") == 1
        assert "secret" not in worker.stderr


def test_no_url_is_needed_for_an_app_that_has_its_database(start_worker: Starter, database_url: str) -> None:
    source = IDLE.replace('os.environ["AKADZE_DATABASE_URL"]', repr(database_url))
    worker = start_worker(source, *FAST, environment={"AKADZE_DATABASE_URL": ""})
    worker.wait_for_output(SERVES)
    worker.terminate()
    assert_clean(worker)


def test_the_database_of_the_option_wins_over_that_of_the_app(
    start_worker: Starter, table: Table, database_url: str
) -> None:
    source = IDLE.replace('os.environ["AKADZE_DATABASE_URL"]', "'postgresql://127.0.0.1:1/nowhere'")
    environment = {"AKADZE_DATABASE_URL": ""}
    worker = start_worker(source, *FAST, "--database-url", database_url, environment=environment)
    before = start_worker.command("--database-url", database_url, "worker", "worker1:app", environment=environment)
    supervisor = start_worker(
        source, *FAST, "--database-url", database_url, "--processes", "2", environment=environment
    )
    wait_until(lambda: len(rows_of_workers(table)) == 4)
    job_id = table.insert()
    wait_until(lambda: ended(table, job_id))
    for process in (worker, before, supervisor):
        process.terminate()
        assert_clean(process)
    assert table.job(job_id)["result"] == "sent"


def test_the_options_reach_the_worker(start_worker: Starter, table: Table) -> None:
    worker = start_worker(
        f"""{IDLE}
import akadze.worker

class Shown(akadze.worker.Worker):
    async def serve(self, stop: asyncio.Event) -> None:
        print({{name: value for name, value in vars(self).items() if not name.startswith("_") and name != "app"}})

akadze.worker.Worker = Shown
""",
        *("--slots", "7", "--queue", "b", "--queue", "two words", "--fair", "--no-notify"),
        *("--heartbeat-interval", "1.5", "--heartbeat-ttl", "1m", "--poll-interval", "500ms"),
        *("--shutdown-timeout", "0"),
    )
    assert_clean(worker)
    assert worker.stdout == (
        "{'queues': ['b', 'two words'], 'slots': 7, "
        "'heartbeat_interval': datetime.timedelta(seconds=1, microseconds=500000), "
        "'heartbeat_ttl': datetime.timedelta(seconds=60), "
        "'poll_interval': datetime.timedelta(microseconds=500000), "
        "'shutdown_timeout': datetime.timedelta(0), 'fair': True, 'notify': False}\n"
    )


def test_it_works_where_the_loop_takes_no_signal_handlers(start_worker: Starter, table: Table) -> None:
    worker = start_worker(
        f"""{IDLE}
def refuse(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = refuse
asyncio.SelectorEventLoop.remove_signal_handler = refuse
""",
        *FAST,
    )
    job_id = table.insert()
    wait_until(lambda: ended(table, job_id))
    worker.interrupt()
    assert_clean(worker)
    assert "NotImplementedError" not in worker.stderr


@FULL
def test_python_m_akadze_is_the_same_command(start_worker: Starter, tmp_path: Any) -> None:
    (tmp_path / "module.py").write_text(
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-m', 'akadze', '--version'], capture_output=True, text=True))\n"
    )
    worker = start_worker.command("worker", "module:app")
    assert worker.wait() == 2
    assert "returncode=0, stdout='akadze " in worker.stdout
