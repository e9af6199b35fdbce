"""Whom the server runs as: PostgreSQL refuses root, who has to hand it to someone else."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from textwrap import dedent

import psycopg
import pytest

from akadze import dev
from akadze.errors import AkadzeError
from tests.processes import is_alive
from tests.unit.dev.servers import Parent, copy_wheel, make_programs, value
from tests.waiting import wait_until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to hand the server to another user")


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
