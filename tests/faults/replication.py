"""Two servers of the tests' own, of which one follows the other and can take over."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from akadze import dev
from akadze._embedded import give_to
from tests.database import create_database, with_database
from tests.waiting import wait_until

_NAME = "akadze_failover_test"
_FOLLOWER = "follower"


class Pair:
    """`url` names both servers, and reaches the one that can be written to."""

    def __init__(self, primary: dev.Server, standby: dev.Server) -> None:
        self.primary = primary
        self.standby = standby
        self.primary_url = create_database(primary.url(), _NAME)
        self.standby_url = with_database(standby.url(), _NAME)
        first, second = (urlsplit(url) for url in (self.primary_url, self.standby_url))
        # The roles are replicated, and their passwords with them.
        hosts = f"{first.hostname}:{first.port},{second.hostname}:{second.port}"
        options = "target_session_attrs=read-write&connect_timeout=2"
        self.url = f"postgresql://{first.username}:{first.password}@{hosts}/{_NAME}?{options}"

    def synchronous(self) -> None:
        """Let a commit be acknowledged when the standby has it."""
        self._alter(self.primary, f"set synchronous_standby_names = '{_FOLLOWER}'")
        self._until(self.primary, "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'")

    def stop_following(self) -> None:
        """Let the standby get nothing any more, once it has what was committed so far."""
        [at] = self._rows(self.primary, "select pg_current_wal_lsn()::text")
        self._until(self.standby, f"select pg_last_wal_replay_lsn() >= '{at[0]}'")
        self._alter(self.standby, "set primary_conninfo = ''")
        self._until(self.standby, "select count(*) = 0 from pg_stat_wal_receiver")

    def fail_over(self) -> None:
        """Crash the primary for good and let the standby take over."""
        self.primary.stop("immediate")
        self._rows(self.standby, "select pg_promote()")
        self._until(self.standby, "select not pg_is_in_recovery()")

    def _alter(self, server: dev.Server, setting: str) -> None:
        self._rows(server, f"alter system {setting}")
        self._rows(server, "select pg_reload_conf()")

    def _rows(self, server: dev.Server, statement: str) -> list[Any]:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _until(self, server: dev.Server, question: str) -> None:
        wait_until(lambda: self._rows(server, question)[0][0])


@contextmanager
def replicating() -> Iterator[Pair]:
    """Start a primary and a standby of it."""
    directory = Path(tempfile.mkdtemp(prefix="akadze-pg-"))
    try:
        with dev.start(tcp=True) as primary:
            _copy(primary, directory)
            with dev.start(directory=directory, tcp=True) as standby:
                yield Pair(primary, standby)
    finally:
        shutil.rmtree(directory)


def _copy(primary: dev.Server, directory: Path) -> None:
    program = primary._binaries / "pg_basebackup"
    shutil.copy2(primary.directory / "password", directory)
    give_to(primary._account, directory)
    source = f"host={primary._socket_directory} port={primary._port} user=postgres application_name={_FOLLOWER}"
    options = ("-R", "-X", "stream", "-c", "fast", "--no-sync")
    code, printed = primary._account.run(program, "-d", source, "-D", directory / "data", *options)
    assert code == 0, printed
