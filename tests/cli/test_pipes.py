"""Contract, section 14: readers that go away, terminals, and other ends of the output."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Table
from tests.cli.test_worker import FAST, IDLE, ended
from tests.families import FULL, few
from tests.processes import COMMAND
from tests.waiting import wait_until

Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(database_url: str, tmp_path: Path) -> Shell:
    """Run a line of bash in which `akadze` is the command."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f'akadze() {{ {shlex.quote(str(COMMAND))} "$@"; }}; {line}'],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "AKADZE_DATABASE_URL": database_url},
        )

    return run


@pytest.fixture
def many(table: Table) -> None:
    """More jobs than a pipe holds as text."""
    table.rows(
        "insert into akadze.jobs (task, queue, meta)"
        " select 'mail', 'default', jsonb_build_object('text', repeat('x', 200)) from generate_series(1, 1000)"
    )


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "line", few(["jobs list --limit 1000", "jobs list --limit 1000 --json"], kept=["jobs list --limit 1000"])
)
def test_a_reader_that_wants_one_line_ends_a_list_in_silence(shell: Shell, line: str) -> None:
    done = shell(f"akadze {line} | head -1; echo ${{PIPESTATUS[0]}}")
    first, code = done.stdout.splitlines()
    assert first == "[" if "--json" in line else first.startswith("id=")
    assert (code, done.stderr) == ("0", "")


@pytest.mark.parametrize(
    "line",
    few(["metrics", "queues list", "--version", "jobs list --help"], kept=["metrics", "--version", "jobs list --help"]),
)
def test_a_reader_that_wants_nothing_sees_no_noise(shell: Shell, line: str) -> None:
    assert shell(f"akadze {line} | true").stderr == ""


@pytest.mark.parametrize("line", ["metrics", "--version", "--help", "jobs list --help"])
def test_an_output_that_is_full_is_a_failure_of_one_line(shell: Shell, line: str) -> None:
    done = shell(f"akadze {line} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be written: No space left on device\n")


@FULL
def test_outputs_that_are_closed_do_no_harm(shell: Shell) -> None:
    assert shell("akadze metrics >&-").returncode == 0
    assert shell("akadze jobs show 1 >&- 2>&-").returncode == 1


def test_names_are_printed_in_any_encoding(shell: Shell, table: Table) -> None:
    table.insert(queue="žluť")
    done = shell("PYTHONIOENCODING=ascii akadze queues list")
    assert (done.returncode, done.stderr) == (0, "")
    assert "queue=\\u017elu\\u0165 " in done.stdout


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "akadze.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["akadze", "jobs", "list"]
from akadze.cli import main
main()
"""


def test_a_command_that_is_interrupted_while_it_is_loaded_ends_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupted_command_ends_without_a_traceback(database_url: str, table: Table) -> None:
    table.rows("begin")
    table.rows("lock table akadze.queue_pauses in access exclusive mode")
    process = subprocess.Popen(
        [COMMAND, "queues", "pause", "mail", "--database-url", database_url], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: table.rows("select pid from pg_locks where not granted"))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        table.rows("rollback")
        process.kill()
        process.communicate()
    assert (process.returncode, said) == (130, "")


@pytest.fixture
def terminal(database_url: str) -> Iterator[Callable[..., str]]:
    """Run a command with a terminal as its output, and return what it printed there."""
    controller, end = pty.openpty()

    def run(*arguments: str, environment: dict[str, str] | None = None) -> str:
        variables = {"AKADZE_DATABASE_URL": database_url, "TERM": "xterm-256color", "COLUMNS": "100"}
        subprocess.run(
            [COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=end,
            env={**os.environ, **variables, **(environment or {})},
            check=True,
            timeout=60,
        )
        return os.read(controller, 65536).decode().replace("\r\n", "\n")

    yield run
    os.close(end)
    os.close(controller)


def test_a_terminal_gets_a_table_in_colour(terminal: Callable[..., str], table: Table) -> None:
    table.insert(state="failed", queue="\x1b[31mred")
    shown = terminal("jobs", "list")
    assert "\x1b[31mfailed" in shown
    assert "\x1b[31mred" not in shown
    assert "\\u001b[31mred" in shown
    assert "id=" not in shown
    without = terminal("jobs", "list", environment={"NO_COLOR": "1"})
    assert "failed" in without
    assert "\x1b[31m" not in without


def test_a_terminal_gets_json_when_it_asks_for_it(terminal: Callable[..., str]) -> None:
    assert terminal("jobs", "list", "--json") == "[]\n"


@pytest.mark.parametrize("printing", [False, True])
def test_a_worker_goes_on_when_nobody_reads_its_log(
    database_url: str, table: Table, tmp_path: Path, printing: bool
) -> None:
    source = IDLE.replace("return", "print('mail', flush=True)\n    return") if printing else IDLE
    (tmp_path / "module.py").write_text(source)
    worker = subprocess.Popen(
        [COMMAND, "worker", "module:app", *FAST, "--log-level", "debug"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        env={**os.environ, "AKADZE_DATABASE_URL": database_url},
    )
    try:
        assert worker.stdout is not None
        assert any(b"serves queues" in line for line in worker.stdout)
        worker.stdout.close()
        # The first of them may be the one whose line finds the pipe closed.
        for _ in range(3):
            job_id = table.insert(max_attempts=1)
            wait_until(lambda: ended(table, job_id))  # noqa: B023 - called at once
        assert table.job(job_id)["state"] == "succeeded"
        worker.terminate()
        assert worker.wait() == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_short_command_starts_no_threads_and_one_connection(database_url: str, table: Table) -> None:
    sessions = "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
    before = table.rows(sessions)
    table.rows("begin")
    table.rows("lock table akadze.limits in access exclusive mode")
    process = subprocess.Popen(
        [COMMAND, "limits", "set", "k", "--max-running", "1", "--database-url", database_url], stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: table.rows("select pid from pg_locks where not granted"))
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        table.rows("select pg_stat_clear_snapshot()")
        added = len(table.rows(sessions)) - len(before)
        table.rows("rollback")
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
    assert (threads, added) == (1, 1)
