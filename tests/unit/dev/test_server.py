"""The embedded PostgreSQL: it starts, answers, keeps what it should, and stops without a trace."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from akadze import dev
from akadze.errors import AkadzeError
from tests.families import FULL
from tests.processes import is_alive
from tests.unit.dev.servers import value
from tests.waiting import wait_until


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


@FULL
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


@pytest.fixture
def table(running: dev.Server) -> Iterator[str]:
    """The name of a table with one committed row."""
    with psycopg.connect(running.url(), autocommit=True) as connection:
        connection.execute("create table kept as select 1 as n")
    yield "kept"
    with psycopg.connect(running.url(), autocommit=True) as connection:
        connection.execute("drop table kept")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_committed_rows_survive_a_restart(running: dev.Server, table: str, mode: Any) -> None:
    url, pid = running.url(), running.pid
    running.restart(mode)
    assert running.url() == url
    assert running.pid != pid
    assert value(running, f"select n from {table}") == 1


def test_committed_rows_survive_a_kill(running: dev.Server, table: str) -> None:
    with psycopg.connect(running.url(), autocommit=True) as connection:
        running.kill()
        assert running.pid is None
        running.start()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert value(running, f"select n from {table}") == 1


def test_a_stopped_server_refuses_connections_until_it_is_started_again(running: dev.Server, table: str) -> None:
    running.stop(mode="immediate")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(running.url())
    running.start()
    assert value(running, f"select n from {table}") == 1


def test_a_killed_server_can_be_stopped_for_good_and_leaves_nothing() -> None:
    server = dev.start()
    with psycopg.connect(server.url()) as connection:
        session = connection.info.backend_pid
        server.kill()
        server.stop()
    wait_until(lambda: not is_alive(session))
    assert not server.directory.exists()


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
