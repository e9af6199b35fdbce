"""A PostgreSQL of your own for development, tests and `akadze demo`, from the extra `akadze[embedded]`."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from akadze._embedded import choose_account, find_binaries, give_to, make_cluster, reachable_binaries, tail
from akadze.errors import AkadzeError

__all__ = ["Server", "find_binaries", "start"]

_PORT = 5432  # only names the socket file, unless the server listens on TCP
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 60.0
_LONGEST_SOCKET = 103  # bytes; the kernel's field for a socket's path is 104 (macOS) or 108 (Linux), with a NUL

# For a server whose data nobody will miss. Commits are still written to the file at once, only not forced to the
# disk, so they survive the death of the server's processes, though not of the machine. Shared memory segments live in
# the data directory, so that removing it leaves nothing behind, also after kill().
_THROW_AWAY = {
    "fsync": "off",
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",
}

# Ends the server when the process that started it is gone, however that ended. It waits on a pipe that only the
# parent holds: an orderly stop writes a word into it, death closes it. The kernel's own "signal on the parent's death"
# is no good here: it follows the thread that started the child, and fires when that thread ends. A forked child of
# the parent holds the pipe too, so the server then lives as long as that child.
_WATCH = """
trap '' HUP INT TERM
read -r word
[ "$word" = stopped ] && exit 0
signal=$1 data=$2
shift 2
pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null)
[ -n "$pid" ] && kill "-$signal" "$pid" 2>/dev/null
left=100
while [ -e "$data/postmaster.pid" ] && [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
left=50
for directory in "$@"; do
    while [ -e "$directory" ] && [ "$left" -gt 0 ]; do
        rm -rf -- "$directory" 2>/dev/null || sleep 0.1
        left=$((left - 1))
    done
done
"""


def start(
    *,
    directory: Path | None = None,
    durable: bool = False,
    keep: bool = False,
    tcp: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Server:
    """Start a PostgreSQL server and return it once it takes connections.

    Without `directory` it lives in a new temporary folder that is removed at the end. With it, the cluster in that
    folder is used, or made there when the folder is empty or missing, and stays. The server trades safety against a
    crash of the machine for speed unless `durable`. It ends with this process, even one that is killed, unless
    `keep`: then it and its folder stay until someone stops it. It listens on a socket that only this user can open;
    with `tcp` also on a free port of 127.0.0.1, with a password that `Server.url` has in it. `settings` are further
    server settings, which win over those chosen here.

    Raises AkadzeError when no PostgreSQL is found, when it does not start (with the end of its log), when the folder
    holds something else, or when a server runs on it already.
    """
    binaries = find_binaries()
    if binaries is None:
        raise AkadzeError(
            "No PostgreSQL was found to start here: install akadze[embedded], "
            "or set AKADZE_DATABASE_URL to a database of yours."
        )
    server = Server(binaries, directory=directory, durable=durable, keep=keep, tcp=tcp, settings=settings or {})
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


class Server:
    """A running PostgreSQL server. Made by `start`; a context manager that stops it for good at the end."""

    def __init__(
        self,
        binaries: Path,
        *,
        directory: Path | None,
        durable: bool,
        keep: bool,
        tcp: bool,
        settings: Mapping[str, str],
    ) -> None:
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._keep = keep
        self._durable = durable
        self._hurry = directory is None and not durable  # nobody needs the data to be shut down in order
        self._temporary = [] if directory is not None else [Path(tempfile.mkdtemp(prefix="akadze-pg-"))]
        self.directory = self._temporary[0] if directory is None else directory.absolute()
        try:
            self._prepare(binaries)
        except BaseException:
            self.stop()
            raise
        self._port = _free_port() if tcp else None
        self._settings = {
            "listen_addresses": "127.0.0.1" if tcp else "",
            "port": str(self._port or _PORT),
            "unix_socket_directories": '"{}"'.format(str(self._socket_directory).replace('"', '""')),
            "unix_socket_permissions": "0700",
            **({} if durable else _THROW_AWAY),
            **settings,
        }

    def _prepare(self, binaries: Path) -> None:
        data = self.directory / "data"
        new = not (data / "PG_VERSION").exists()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if new and any(self.directory.iterdir()):
            raise AkadzeError(f"{self.directory} is not empty and holds no PostgreSQL of akadze: name an empty folder.")
        self._socket_directory = self._choose_socket_directory()
        if not self._keep:
            self._watch = self._start_watch()
        # An exit without stop() is an ordinary end, too.
        atexit.register(self._let_go if self._keep else self.stop)
        self._account = choose_account()
        for directory in {self.directory, self._socket_directory}:
            give_to(self._account, directory)
        self._binaries = reachable_binaries(binaries, account=self._account, directory=self.directory)
        if new:
            make_cluster(self._binaries, account=self._account, directory=self.directory, durable=self._durable)
        self._password = (self.directory / "password").read_text().strip()

    def _choose_socket_directory(self) -> Path:
        if len(os.fsencode(self.directory / f".s.PGSQL.{_PORT}0")) <= _LONGEST_SOCKET:
            return self.directory
        short = Path(tempfile.mkdtemp(prefix="akadze-pg-", dir="/tmp"))
        self._temporary.append(short)
        return short

    def _start_watch(self) -> subprocess.Popen[bytes]:
        removed = [str(directory) for directory in self._temporary]
        number = "QUIT" if self._hurry else "INT"
        return subprocess.Popen(  # noqa: S603 - the script above, with paths as arguments
            ["/bin/sh", "-c", _WATCH, "sh", number, str(self.directory / "data"), *removed],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database on this server, for psycopg, SQLAlchemy (with a driver named) and akadze."""
        if self._port is not None:
            return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/{quote(database, safe='')}"
        port = f"&port={_PORT}" if os.environ.get("PGPORT", str(_PORT)) != str(_PORT) else ""
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self._socket_directory))}{port}"

    def start(self) -> None:
        """Start the server again on the same data after `stop(mode)` or `kill`. Does nothing while it runs.

        Raises AkadzeError when it was stopped for good, or does not start.
        """
        if self._ended:
            raise AkadzeError("This server was stopped for good: start another one with akadze.dev.start().")
        deadline = time.monotonic() + _START_TIMEOUT
        while self.pid is None:
            refusal = self._try_start(deadline)
            # After kill() the last sessions of the killed server may take a moment to notice.
            if refusal is not None and ("still in use" not in refusal or time.monotonic() > deadline):
                raise AkadzeError(f"PostgreSQL in {self._binaries} did not start: {refusal}")

    def _try_start(self, deadline: float) -> str | None:
        log = self.directory / "log"
        options = [item for name, value in self._settings.items() for item in ("-c", f"{name}={value}")]
        with log.open("ab") as output:
            seen = output.tell()
            process = self._account.popen(
                [self._binaries / "postgres", "-D", self.directory / "data", *options], output=output.fileno()
            )
        self._process = process
        while not self._is_ready(process.pid):
            if process.poll() is not None:
                return tail(log.read_bytes()[seen:].decode(errors="replace"))
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
                return f"it was not ready after {_START_TIMEOUT:.0f} s"
            time.sleep(0.01)
        return None

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # Its lines: process id, data directory, start time, port, socket, address, shared memory, status.
        # A standby, where the data is of one, is ready when it takes readers.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in ("ready", "standby")

    def stop(self, mode: Literal["fast", "immediate"] | None = None) -> None:
        """Stop the server: for good, or with a mode in such a way that `start` can go on with the same data.

        Stopped for good, the temporary folder of a throw-away server is removed. `fast` ends open sessions and
        shuts down in order; `immediate` drops all at once, as a crash does, and the next start recovers. Does nothing
        in a forked child of the process that started it.
        """
        if os.getpid() != self._owner or self._ended:
            return
        hurry = self._hurry if mode is None else mode == "immediate"
        self._signal(signal.SIGQUIT if hurry else signal.SIGINT)
        if mode is None:
            self._ended = True
            self._release()

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and start it again on the same data, at the same URL."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the server's main process outright: its sessions end without a word, and `start` recovers the data."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _release(self) -> None:
        for directory in self._temporary:
            _remove(directory)
        if self._watch is not None and self._watch.stdin is not None:
            with suppress(BrokenPipeError), self._watch.stdin as pipe:
                pipe.write(b"stopped\n")
            self._watch.wait()
        atexit.unregister(self.stop)
        atexit.unregister(self._let_go)

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.returncode = 0  # so that subprocess does not warn of a child that is meant to go on

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + 5
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)  # after kill() the last sessions may still write to it
        time.sleep(0.01)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
