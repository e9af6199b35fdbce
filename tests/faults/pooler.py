"""A PgBouncer in transaction mode in front of a server of the tests' own."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.waiting import wait_until

#: Sessions that the pooler has on the server for one database.
SESSIONS = 3
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")

_SETTINGS = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 100
"""
#: From this version on a pooler may keep prepared statements for its clients, which hides those that it cannot have.
_KEEPS_STATEMENTS = (1, 21)


@contextmanager
def pooled(server_url: str, directory: Path) -> Iterator[str]:
    """Start a PgBouncer, and yield the server's URL through it; stop it at the end, and print its log."""
    assert PROGRAM is not None
    server = urlsplit(server_url)
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    settings = directory / "pgbouncer.ini"
    settings.touch(mode=0o600)
    settings.write_text(
        _SETTINGS.format(
            host=server.hostname,
            port=server.port,
            user=server.username,
            password=server.password,
            listen_port=port,
            sessions=SESSIONS,
        )
        + ("max_prepared_statements = 0\n" if _version() >= _KEEPS_STATEMENTS else "")
    )
    # It refuses to run as root, and reads its settings before it becomes somebody else.
    account = ["-u", "nobody"] if os.geteuid() == 0 else []
    log = directory / "pgbouncer.log"
    with log.open("wb") as output:
        process = subprocess.Popen([PROGRAM, "-q", *account, settings], stdout=output, stderr=output)
    try:
        wait_until(lambda: _answers(port, process))
        yield f"postgresql://{server.username}@127.0.0.1:{port}{server.path}"
    finally:
        process.terminate()
        process.wait()
        print(f"--- log of PgBouncer\n{log.read_text(errors='replace')}")


def _version() -> tuple[int, ...]:
    assert PROGRAM is not None
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", said.splitlines()[0])[:2]))


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "PgBouncer has ended"
    with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
        return True
    return False
