"""What happened, as the database and the run log tell it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from soaking import log

FINAL = frozenset({"succeeded", "failed", "cancelled"})

_HERE = Path(__file__).parent
_BLOCKS = re.split(r"^-- name: (\w+)\s*$", (_HERE / "evidence.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
QUESTIONS = dict(zip(_BLOCKS[1::2], _BLOCKS[2::2], strict=True))
HISTORY = (_HERE / "history.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Job:
    id: int
    task: str
    state: str
    queue: str = "default"
    run_count: int = 0
    attempt: int = 0
    max_attempts: int = 3
    snoozes: int = 0
    token: str | None = None
    limit_key: str | None = None
    unique_key: str | None = None
    cancel: bool = False
    expires_at: float | None = None
    errors: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """One change of a job's row, with the values after it."""

    job_id: int
    at: float
    old_state: str | None
    new_state: str | None
    run_count: int = 0
    attempt: int = 0
    snoozes: int = 0
    old_worker: str | None = None
    new_worker: str | None = None
    limit_key: str | None = None
    run_at: float | None = None
    started_at: float | None = None
    cancel: bool = False
    #: A rescue has made it.
    lost: bool = False
    seq: int = 0

    @property
    def starts(self) -> bool:
        return self.old_state == "queued" and self.new_state == "running"

    @property
    def ends_run(self) -> bool:
        return self.old_state == "running" and self.new_state != "running"


@dataclass(frozen=True)
class Beat:
    worker: str
    at: float
    ttl: float
    pid: int = 0
    #: The worker has taken its row away.
    gone: bool = False


@dataclass(frozen=True)
class Policy:
    """A limit from here on; all None: none."""

    key: str
    at: float
    max_running: int | None = None
    max_starts: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Fire:
    task: str
    slot: float
    job_id: int


@dataclass(frozen=True)
class Effect:
    job_id: int
    run: int


@dataclass(frozen=True)
class Broken:
    """A promise that was not kept."""

    promise: str
    what: str
    job_id: int | None = None


@dataclass(frozen=True)
class Evidence:
    """Everything the checks look at."""

    jobs: list[Job] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    fires: list[Fire] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def changes_of(self) -> dict[int, list[Change]]:
        found: dict[int, list[Change]] = defaultdict(list)
        for change in sorted(self.changes, key=lambda change: change.seq):
            found[change.job_id].append(change)
        return dict(found)

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["what"] in kinds]

    @cached_property
    def started(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The start of each run."""
        return {(line["job"], line["run"]): line for line in self.lines("start")}

    @cached_property
    def ended(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The end of each run whose body came to its end."""
        return {(line["job"], line["run"]): line for line in self.lines("end")}


def read(url: str, directory: Path) -> Evidence:
    """Gather the evidence of a database and a run log."""
    found: dict[str, list[Any]] = {}
    kinds = {"jobs": Job, "changes": Change, "beats": Beat, "policies": Policy, "fires": Fire, "effects": Effect}
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        for name, kind in kinds.items():
            rows = connection.execute(QUESTIONS[name].encode()).fetchall()
            found[name] = [kind(**row) for row in rows]
    assert {*found, "log"} == {one.name for one in fields(Evidence)}
    return Evidence(**found, log=log.read(directory))
