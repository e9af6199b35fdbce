"""The server and the process that started it: however that ends, nothing is left behind."""

from __future__ import annotations

import os
import signal
from itertools import product
from pathlib import Path

import psycopg
import pytest

from tests.families import few
from tests.processes import is_alive
from tests.unit.dev.servers import Parent
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("number", "durable"),
    few(
        product([signal.SIGKILL, signal.SIGTERM], [False, True]),
        kept=[(signal.SIGKILL, False), (signal.SIGTERM, True)],
    ),
)
def test_a_killed_parent_leaves_no_server_and_no_folder(
    parents: list[Parent], number: signal.Signals, durable: bool
) -> None:
    parents.append(parent := Parent(f"server = dev.start(durable={durable})"))
    with psycopg.connect(parent.url):
        parent.process.send_signal(number)
        parent.process.wait()
        wait_until(lambda: not is_alive(parent.server))
    wait_until(lambda: not parent.directory.exists())


def test_a_killed_parent_leaves_a_named_folder_shut_down_in_order(parents: list[Parent], open_directory: Path) -> None:
    directory = open_directory / "cluster"
    parents.append(parent := Parent(f"import pathlib\nserver = dev.start(directory=pathlib.Path({str(directory)!r}))"))
    parent.process.kill()
    wait_until(lambda: not is_alive(parent.server))
    assert "database system is shut down" in (directory / "log").read_text()


def test_the_thread_that_started_the_server_may_end_before_it(parents: list[Parent]) -> None:
    script = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as pool:
            server = pool.submit(dev.start).result()
    """
    parents.append(parent := Parent(script))
    with psycopg.connect(parent.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    parent.process.kill()
    wait_until(lambda: not is_alive(parent.server))


def test_a_parent_that_just_ends_stops_its_server_and_warns_of_nothing(parents: list[Parent]) -> None:
    parents.append(parent := Parent("server = dev.start()"))
    assert parent.leave() == ""
    assert not is_alive(parent.server)
    assert not parent.directory.exists()


def test_a_forked_child_that_ends_does_not_stop_the_server_of_its_parent(parents: list[Parent]) -> None:
    script = """
        import os
        server = dev.start()
        if os.fork() == 0:
            server.stop()
            sys.exit()
        os.wait()
    """
    parents.append(parent := Parent(script))
    with psycopg.connect(parent.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(parents: list[Parent]) -> None:
    parents.append(
        parent := Parent("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nserver = dev.start()")
    )
    os.killpg(parent.process.pid, signal.SIGINT)
    with psycopg.connect(parent.url) as connection:
        assert connection.execute("select pg_backend_pid() > 0").fetchone() == (True,)
    assert os.getsid(parent.server) != os.getsid(parent.process.pid)


def test_a_kept_server_outlives_its_parent(parents: list[Parent]) -> None:
    parents.append(parent := Parent("server = dev.start(keep=True)"))
    assert parent.leave() == ""
    with psycopg.connect(parent.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    os.kill(parent.server, signal.SIGINT)
    wait_until(lambda: not is_alive(parent.server))
    assert parent.directory.exists()
