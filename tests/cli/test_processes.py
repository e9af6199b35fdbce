"""Contract, section 14: `--processes`: one signal stops all, a process that dies is replaced, exit codes tell."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Table
from tests.cli.test_worker import FAST, IDLE, SERVES, ended, rows_of_workers
from tests.processes import Starter, is_alive
from tests.waiting import wait_until

TWO = (*FAST, "--processes", "2")


def pids(table: Table) -> set[int]:
    return {row["pid"] for row in table.rows("select pid from akadze.workers")}


def test_one_signal_stops_all_processes_with_code_0(start_worker: Starter, table: Table) -> None:
    supervisor = start_worker(IDLE, *TWO)
    wait_until(lambda: len(pids(table)) == 2)
    workers = pids(table)
    assert supervisor.pid not in workers
    job_id = table.insert()
    wait_until(lambda: ended(table, job_id))
    supervisor.terminate()
    assert supervisor.wait() == 0
    assert "Traceback" not in supervisor.stderr
    assert rows_of_workers(table) == []
    assert not any(map(is_alive, workers))


def test_a_module_of_the_project_does_not_hide_one_of_python(start_worker: Starter, tmp_path: Path) -> None:
    """The current directory is for the app, not for what a process imports before it."""
    (tmp_path / "queue.py").write_text("raise SystemExit('hidden')")
    supervisor = start_worker(IDLE, *TWO)
    wait_until(lambda: supervisor.stderr.count(SERVES) == 2 or "hidden" in supervisor.stderr)
    supervisor.terminate()
    assert supervisor.wait() == 0
    assert "hidden" not in supervisor.stderr


def test_a_process_that_dies_is_replaced(start_worker: Starter, table: Table) -> None:
    supervisor = start_worker(IDLE, *TWO)
    wait_until(lambda: len(pids(table)) == 2)
    killed = min(pids(table))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(pids(table) - {killed}) == 2)
    supervisor.wait_for_output("is replaced")
    supervisor.terminate()
    assert supervisor.wait() == 0


def test_processes_do_not_outlive_a_supervisor_that_is_killed(start_worker: Starter, table: Table) -> None:
    supervisor = start_worker(IDLE, *TWO)
    wait_until(lambda: len(pids(table)) == 2)
    workers = pids(table)
    supervisor.kill()
    wait_until(lambda: not any(map(is_alive, workers)))
    assert rows_of_workers(table) == []


def test_processes_that_cannot_start_end_the_supervisor_with_their_code(start_worker: Starter, table: Table) -> None:
    supervisor = start_worker("import os\n", *TWO)
    assert supervisor.wait() == 2
    assert rows_of_workers(table) == []


def test_a_second_signal_hands_back_what_runs_in_every_process(start_worker: Starter, table: Table) -> None:
    slow = IDLE.replace('return "sent"', "await asyncio.sleep(600)\n    return 'late'")
    supervisor = start_worker(slow, *TWO, "--shutdown-timeout", "50s")
    jobs = [table.insert(), table.insert()]
    wait_until(lambda: all(table.job(job_id)["state"] == "running" for job_id in jobs))
    supervisor.terminate()
    supervisor.wait_for_output("stops")
    supervisor.terminate()
    assert supervisor.wait() == 0
    assert {table.job(job_id)["state"] for job_id in jobs} == {"queued"}
    assert {table.job(job_id)["attempt"] for job_id in jobs} == {0}


def test_two_signals_stay_two_for_a_process_that_had_no_time_for_the_first(start_worker: Starter, table: Table) -> None:
    slow = IDLE.replace('return "sent"', "await asyncio.sleep(600)\n    return 'late'")
    supervisor = start_worker(slow, *TWO, "--shutdown-timeout", "50s")
    jobs = [table.insert(), table.insert()]
    wait_until(lambda: all(table.job(job_id)["state"] == "running" for job_id in jobs))
    held = min(pids(table))
    os.kill(held, signal.SIGSTOP)
    try:
        supervisor.terminate()
        supervisor.wait_for_output("stops")
        supervisor.terminate()
        # The other process has both signals once its job is handed back, and so has the one that is held.
        wait_until(lambda: len(rows_of_workers(table)) == 1)
    finally:
        os.kill(held, signal.SIGCONT)
    assert supervisor.wait() == 0
    assert {table.job(job_id)["state"] for job_id in jobs} == {"queued"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_service_is_one_signal(
    start_worker: Starter, table: Table, number: signal.Signals
) -> None:
    """As systemd sends it: what runs has the whole shutdown timeout, and a second one still hands back at once."""
    slow = IDLE.replace('return "sent"', "await asyncio.sleep(600 if current().job.meta else 3)\n    return 'late'")
    supervisor = start_worker(f"from akadze import current\n{slow}", *TWO, "--shutdown-timeout", "50s")
    jobs = [table.insert(), table.insert(meta='{"long": true}')]
    wait_until(lambda: all(table.job(job_id)["state"] == "running" for job_id in jobs))
    service = [*pids(table), supervisor.pid]
    for pid in service[:-1]:
        os.kill(pid, number)
    wait_until(lambda: supervisor.stderr.count("1 jobs still run") == 2)
    os.kill(supervisor.pid, number)
    wait_until(lambda: table.job(jobs[0])["state"] != "running")
    assert [table.job(job_id)["state"] for job_id in jobs] == ["succeeded", "running"]
    for pid in filter(is_alive, service):
        os.kill(pid, number)
    assert supervisor.wait() == 0
    assert [table.job(job_id)["state"] for job_id in jobs] == ["succeeded", "queued"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_processes_start_is_a_clean_stop(start_worker: Starter, number: signal.Signals) -> None:
    """They end by the signal itself, which they cannot handle yet, and have claimed nothing."""
    supervisor = start_worker(IDLE, *TWO)
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2)
    os.kill(supervisor.pid, number)
    assert supervisor.wait() == 0
    assert "Traceback" not in supervisor.stderr


SUPERVISOR = """
import sys
from akadze._worker import processes

processes._STARTING = float(sys.argv[1])
sys.exit(processes.Supervisor([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"], 2).run())
"""


@pytest.mark.parametrize(("starting", "code"), [("600", 0), ("0", 128 + signal.SIGTERM)])
def test_a_process_that_a_signal_ends_is_clean_only_if_it_was_about_to_start(
    start_worker: Starter, starting: str, code: int
) -> None:
    """Later it may have jobs: a body that takes the handlers away lets the worker die with them."""
    supervisor = start_worker.program(SUPERVISOR, starting)
    wait_until(lambda: supervisor.stdout.count("up") == 2)
    supervisor.terminate()
    assert supervisor.wait() == code


AT_ONCE = """
import sys
from akadze._worker import processes
from akadze.cli import main

processes._STARTING = 0.0
sys.argv = ["akadze", "worker", "slow:app", "--processes", "2"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_app_is_imported_is_a_clean_stop_however_long_that_takes(
    start_worker: Starter, tmp_path: Path, number: signal.Signals
) -> None:
    """As without processes: what the app has printed is there, too."""
    printing = "import sys, time\nprint('imported in part')\nprint('importing', file=sys.stderr, flush=True)\n"
    (tmp_path / "slow.py").write_text(f"{printing}time.sleep(600)\n")
    supervisor = start_worker.program(AT_ONCE, environment={"PYTHONUNBUFFERED": ""})
    wait_until(lambda: supervisor.stderr.count("importing") == 2)
    os.kill(supervisor.pid, number)
    assert supervisor.wait() == 0
    assert supervisor.stdout.count("imported in part") == 2
    assert "Traceback" not in supervisor.stderr


LISTENING = """
import sys
from akadze._worker import processes

CHILD = '''
import signal, time
from akadze._worker.processes import end_with_supervisor

end_with_supervisor()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda received, frame: seen.append(signal.Signals(received).name))
seen = []
print("up", flush=True)
for count in (1, 2):
    while len(seen) < count:
        time.sleep(0.01)
    print(seen[-1], flush=True)
'''
sys.exit(processes.Supervisor([sys.executable, "-c", CHILD], 1).run())
"""


@pytest.mark.parametrize(
    # Where all processes of a service get what came, they get the same twice.
    ("number", "passed_on"),
    [(signal.SIGTERM, "SIGTERM SIGINT"), (signal.SIGINT, "SIGINT SIGTERM")],
)
def test_which_signals_are_passed_on(start_worker: Starter, number: signal.Signals, passed_on: str) -> None:
    supervisor = start_worker.program(LISTENING)
    supervisor.wait_for_output("up")
    os.kill(supervisor.pid, number)
    supervisor.wait_for_output("SIG")
    os.kill(supervisor.pid, number)
    assert supervisor.wait() == 0
    assert supervisor.stdout.split() == ["up", *passed_on.split()]


ENDING = """
import sys
from akadze._worker import processes

processes._STARTED = processes._STARTING = float(sys.argv[1])
sys.exit(processes.Supervisor([sys.executable, "-c", "print('up', flush=True); raise SystemExit(2)"], 2).run())
"""


def test_a_process_that_has_long_served_is_replaced_whatever_its_code(start_worker: Starter) -> None:
    """A body may end its process with the code that says wrong use."""
    supervisor = start_worker.program(ENDING, "0")
    wait_until(lambda: supervisor.stdout.count("up") >= 4)
    assert "giving up" not in supervisor.stderr


ONE_SERVES = """
import sys
from akadze._worker import processes

CHILD = '''
import os, time
try:
    os.close(os.open("serving", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    print("refused", flush=True)
    raise SystemExit(1)
time.sleep(600)
'''
processes._STARTED = 0.5
processes._PAUSE = 0.05
sys.exit(processes.Supervisor([sys.executable, "-c", CHILD], 2).run())
"""


def test_a_process_that_serves_is_not_stopped_because_another_cannot_start(start_worker: Starter) -> None:
    """In an outage it waits with its jobs, and a new one ends at its first connection."""
    supervisor = start_worker.program(ONE_SERVES)
    wait_until(lambda: supervisor.stdout.count("refused") > 8)
    assert "giving up" not in supervisor.stderr
    supervisor.terminate()


WITHOUT_ROOM = """
import os, sys
from akadze._worker import processes

processes._PAUSE = 0.05
os.symlink(sys.executable, "python")
child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
sys.exit(processes.Supervisor([os.path.abspath("python"), "-c", child], int(sys.argv[1])).run())
"""


def test_a_process_that_the_system_cannot_start_is_tried_again(start_worker: Starter, tmp_path: Path) -> None:
    """As when it has no memory left, or no room for one more process: here the program is away for a while."""
    supervisor = start_worker.program(WITHOUT_ROOM, "2")
    wait_until(lambda: len(supervisor.stdout.split()) == 2)
    program = next(tmp_path.rglob("python"))
    target = program.readlink()
    program.unlink()
    os.kill(int(supervisor.stdout.split()[0]), signal.SIGKILL)
    wait_until(lambda: supervisor.stderr.count("cannot be started") > 6)
    program.symlink_to(target)
    wait_until(lambda: len(supervisor.stdout.split()) == 3)
    supervisor.terminate()
    assert supervisor.wait() == 0
    assert "Traceback" not in supervisor.stderr


def test_a_supervisor_without_any_process_gives_up(start_worker: Starter, tmp_path: Path) -> None:
    supervisor = start_worker.program(WITHOUT_ROOM, "1")
    wait_until(lambda: supervisor.stdout)
    next(tmp_path.rglob("python")).unlink()
    os.kill(int(supervisor.stdout), signal.SIGKILL)
    assert supervisor.wait() == 1
    assert "no worker process can be started: giving up" in supervisor.stderr


MANY_DIE = """
import os, sys
from akadze._worker import processes

processes._PAUSE = 0.05
processes._STARTED = 0.6
child = sys.argv[2] + " sleep 0.1; exit 1"
sys.exit(processes.Supervisor(["/bin/sh", "-c", child], int(sys.argv[1])).run())
"""


def test_many_processes_that_cannot_start_end_the_supervisor_as_two_do(start_worker: Starter) -> None:
    """How long each lived does not grow while the supervisor is busy with the others."""
    supervisor = start_worker.program(MANY_DIE, "8", "")
    assert supervisor.wait() == 1
    assert "giving up" in supervisor.stderr


def test_a_signal_goes_before_the_many_that_have_died(start_worker: Starter) -> None:
    serving = "if mkdir serving 2> /dev/null; then trap 'exit 0' TERM; while :; do sleep 0.05; done; fi;"
    supervisor = start_worker.program(MANY_DIE, "24", serving)
    wait_until(lambda: supervisor.stderr.count("is replaced") > 24)
    supervisor.terminate()
    before = supervisor.stderr.count("is replaced")
    assert supervisor.wait() == 0
    assert supervisor.stderr.count("is replaced") - before < 5


WITHOUT_THREADS = """
import os, resource, selectors, subprocess, sys
from akadze._worker import processes

os.setgroups([])
os.setgid(54321)
os.setuid(54321)
# Itself, and one more process that has a thread to watch it; the next one has no room for its thread.
resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
sys.exit(processes.Supervisor(["/bin/sleep", "600"], 3).run())
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be a user without any process")
def test_a_process_without_room_for_the_thread_that_watches_it_is_tried_again(start_worker: Starter) -> None:
    supervisor = start_worker.program(WITHOUT_THREADS)
    wait_until(lambda: supervisor.stderr.count("cannot be started: can't start new thread") > 1)
    supervisor.terminate()
    assert supervisor.wait() == 0
    assert "Traceback" not in supervisor.stderr


PID_GIVEN_AGAIN = """
import os, subprocess, sys, time
from akadze._worker import processes

def start(*arguments, **options):
    child = real(*arguments, **options)
    if len(started) == 2:  # it replaces the first: the second ends meanwhile, and this one gets its pid
        pid = started[1].pid
        started[1].kill()
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)
        while child.pid != pid:
            child.kill()
            child.wait()
            with open("/proc/sys/kernel/ns_last_pid", "w") as last:
                last.write(str(pid - 1))
            child = real(*arguments, **options)
        print(pid, flush=True)
    started.append(child)
    if len(started) == 2:
        started[0].kill()
    return child

started = []
real, subprocess.Popen = subprocess.Popen, start
sys.exit(processes.Supervisor(["/bin/sleep", "60"], 2).run())
"""


def can_choose_pids() -> bool:
    last = Path("/proc/sys/kernel/ns_last_pid")
    try:
        last.write_text(last.read_text())  # who may do so is more than the mode of the file tells
    except OSError:
        return False
    return True


@pytest.mark.skipif(not can_choose_pids(), reason="the next pid cannot be chosen")
def test_a_process_that_gets_the_pid_of_one_that_died_is_stopped_with_the_others(start_worker: Starter) -> None:
    supervisor = start_worker.program(PID_GIVEN_AGAIN)
    wait_until(lambda: supervisor.stderr.count("is replaced") == 2)
    supervisor.terminate()
    assert supervisor.wait() == 0
    assert not is_alive(int(supervisor.stdout))
