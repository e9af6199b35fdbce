"""Worker processes of tests: their output can be waited for, and nothing of them outlives the test."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from tests.processes import Starter, is_alive
from tests.waiting import wait_until


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    """A starter whose command is Python itself."""
    monkeypatch.setattr(processes, "COMMAND", Path(sys.executable))
    starter = Starter(tmp_path, "postgresql://localhost/somewhere_test")
    yield starter
    starter.end()


def test_a_process_has_the_database_in_its_environment_and_its_output_is_kept(starter: Starter) -> None:
    code = "import os, sys; print(os.environ['AKADZE_DATABASE_URL']); print('to stderr', file=sys.stderr); sys.exit(3)"
    process = starter.command("-c", code)
    assert process.wait() == 3
    assert process.stdout == "postgresql://localhost/somewhere_test\n"
    assert process.stderr == "to stderr\n"


def test_waiting_for_output_ends_when_it_comes(starter: Starter) -> None:
    process = starter.command("-c", "import time; print('ready', flush=True); time.sleep(600)")
    process.wait_for_output("ready")
    assert process.returncode is None
    process.terminate()
    assert process.wait() == -signal.SIGTERM


def test_waiting_for_output_fails_at_once_when_the_process_ended_without_it(starter: Starter) -> None:
    process = starter.command("-c", "raise SystemExit('a reason')")
    with pytest.raises(AssertionError, match="a reason"):
        process.wait_for_output("ready")


def test_waiting_for_a_process_that_goes_on_fails_with_its_log(starter: Starter) -> None:
    process = starter.command(
        "-c", "import sys, time; print('still busy', file=sys.stderr, flush=True); time.sleep(600)"
    )
    process.wait_for_output("still busy")
    with pytest.raises(pytest.fail.Exception, match="still busy"):
        process.wait(timeout=0.01)


def test_at_the_end_the_process_and_its_children_are_killed(
    starter: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    start = f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)"
    process = starter.command("-c", f"import subprocess, sys, time; {start}; time.sleep(600)")
    process.wait_for_output("\n")
    pid = int(process.stdout)
    assert is_alive(pid)
    starter.end()
    wait_until(lambda: not is_alive(pid))
    assert process.returncode == -signal.SIGKILL
    assert f"stdout of {process.pid}" in capsys.readouterr().out


def test_a_killed_worker_leaves_its_supervised_children_to_the_end_of_the_test(starter: Starter) -> None:
    process = starter.command("-c", "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(600)")
    wait_until(lambda: len(process.stdout.split()) == 2)
    (child,) = {int(pid) for pid in process.stdout.split()} - {process.pid}
    process.kill()
    process.wait()
    os.kill(child, 0)
    starter.end()


@pytest.fixture(params=[False, True], ids=["forked", "anew"])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starter]:
    """A starter of real workers, of both kinds."""
    starter = Starter(tmp_path, "postgresql://localhost/somewhere_test", anew=request.param)
    yield starter
    starter.end()


def test_the_module_of_a_worker_is_written_where_it_runs(workers: Starter, tmp_path: Path) -> None:
    process = workers(
        """
        import os, signal, sys
        print(os.environ["AKADZE_DATABASE_URL"], os.environ["MORE"], os.getcwd(), os.getpid() == os.getsid(0))
        print(sys.argv[1:], signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM), file=sys.stderr)
        os._exit(3)
        """,
        "--slots",
        "2",
        environment={"MORE": "more"},
    )
    assert process.wait() == 3
    assert (tmp_path / "worker1.py").read_text().startswith("\nimport os, signal, sys\n")
    assert process.stdout == f"postgresql://localhost/somewhere_test more {tmp_path} True\n"
    assert process.stderr == "['worker', 'worker1:app', '--slots', '2'] True\n"


def test_a_worker_is_ended_with_what_it_has_started(workers: Starter) -> None:
    process = workers("import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid); time.sleep(600)")
    wait_until(lambda: process.stdout.endswith("\n"))
    pid = int(process.stdout)
    assert is_alive(pid)
    workers.end()
    wait_until(lambda: not is_alive(pid))
    assert process.returncode == -signal.SIGKILL


def test_a_signal_reaches_a_worker(workers: Starter) -> None:
    process = workers("import time; print('importing'); time.sleep(600)")
    process.wait_for_output("importing")
    with pytest.raises(pytest.fail.Exception, match="still runs"):
        process.wait(timeout=0.01)
    process.terminate()
    assert process.wait() == 0
