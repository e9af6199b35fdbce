"""The real tables under the state machine: a clock that can be moved, connections of both colours, three workers.

No worker runs: the workers here are the exchanges that a worker would make, one plain, one fair, one with hooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from akadze import Akadze
from akadze._connections import async_caller, sync_caller
from akadze._statement import statement
from akadze._worker.exchange import Exchange
from akadze.job import Job

TTL = 650.0
QUEUES = ("default", "other")
ASYNC, SYNC = "async", "sync"

_INSERT_WORKER = statement("workers", "insert_worker")
_BEAT = statement("workers", "beat")
_READ_JOBS = """
select id, task, queue, priority, max_attempts, extract(epoch from run_at)::float8 as run_at,
  extract(epoch from expires_at)::float8 as expires_at, unique_key, limit_key, state, attempt, run_count, snoozes,
  worker_id as owner, errors, cancel_requested_at is not null as cancel, expired, result,
  finished_at is not null as finished, extract(epoch from started_at)::float8 as started_at
from akadze.jobs order by id
"""
#: What the passing of time is: every instant in the tables moves into the past.
_MOVE = """
update akadze.jobs j
set run_at = j.run_at - t.by, expires_at = j.expires_at - t.by, created_at = j.created_at - t.by,
  started_at = j.started_at - t.by, finished_at = j.finished_at - t.by
from (select make_interval(secs => %(by)s)) as t(by);
update akadze.workers w set heartbeat_at = w.heartbeat_at - make_interval(secs => %(by)s);
update akadze.limit_starts s set started_at = s.started_at - make_interval(secs => %(by)s);
"""
_CLEAR = """
delete from akadze.jobs; delete from akadze.workers; delete from akadze.limits; delete from akadze.limit_starts;
delete from akadze.queue_pauses; delete from public.effects;
"""


class Refused(Exception):
    """What the on_transition hook raises."""


class Tables:
    """The database of one test, used for all its examples."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        #: Jobs whose moves the hook refuses, and what it was told.
        self.refused: set[int] = set()
        self.told: list[tuple[int, str, str]] = []
        self._offset = 0.0
        self.app, self.hooked_app, self.strangers_app = self._apps(url)
        self.workers: list[Exchange] = []
        self.owners = [UUID(int=number) for number in (1, 2, 3)]
        #: Of both colours, in autocommit; and one that holds a row in a transaction.
        self.sync = psycopg.connect(url, autocommit=True)
        self.holding = psycopg.connect(url)
        self.asynchronous = self.run(psycopg.AsyncConnection.connect(url, autocommit=True))
        self.sync.execute("create table if not exists public.effects (job_id bigint, run integer)")

    def _apps(self, url: str) -> tuple[Akadze, Akadze, Akadze]:
        plain, hooked, strangers = (Akadze(database_url=url) for _ in range(3))
        for app in (plain, hooked, strangers):
            app.register(_body, name="work")
            app.register(_body, name="also")
            app.register(_body, name="side", queue="other")
        strangers.register(_body, name="foreign")
        hooked.hooks.on_transition.append(self.watch)
        return plain, hooked, strangers

    def watch(self, connection: Any, job: Job, from_state: str, to_state: str) -> None:
        """The on_transition hook."""
        self.told.append((job.id, from_state, to_state))
        if job.id in self.refused:
            raise Refused(str(job.id))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop of this test."""
        return self._runner.run(coroutine)

    def close(self) -> None:
        for connection in (self.holding, self.sync):
            connection.close()

        async def end() -> None:
            await self.asynchronous.close()
            for worker in self.workers:
                await worker.give_up()
            for app in (self.app, self.hooked_app, self.strangers_app):
                await app.aclose()

        self.run(end())
        self._runner.close()

    def clear(self) -> None:
        """Begin an example: empty tables, three workers that beat and know nothing yet of the line."""
        self.holding.rollback()
        self.sync.execute(_CLEAR)
        self._offset = 0.0
        self.refused.clear()
        self.told.clear()
        before = self.workers or [None, None, None]
        kinds = [(self.app, False), (self.app, True), (self.hooked_app, False)]
        self.workers = [
            Exchange(app, owner, QUEUES, fair=fair) for owner, (app, fair) in zip(self.owners, kinds, strict=True)
        ]
        for worker, old in zip(self.workers, before, strict=True):
            if old is not None:  # its connections are as good as new ones
                worker._held, worker._hooked = old._held, old._hooked
        for number in range(3):
            self.beat(number)

    def now(self) -> float:
        with self.sync.cursor() as cursor:
            row = cursor.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
        assert row is not None
        return float(row[0]) + self._offset

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with psycopg.ClientCursor(self.sync) as cursor:
            cursor.execute(_MOVE, {"by": seconds})
        self._offset += seconds
        for worker in self.workers:
            worker.forget()  # what it remembers are instants, too

    def put_off(self, job_id: int, seconds: float) -> None:
        """Replace a random delay by one that the model's round numbers cannot meet."""
        self.sync.execute(
            "update akadze.jobs set run_at = now() + make_interval(secs => %s) where id = %s", [seconds, job_id]
        )

    def jobs(self) -> dict[int, dict[str, Any]]:
        with self.sync.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(_READ_JOBS).fetchall()
        for row in rows:
            for name in ("run_at", "expires_at", "started_at"):
                row[name] = None if row[name] is None else row[name] + self._offset
            row["errors"] = [entry["error"] for entry in row["errors"]]
        return {row["id"]: row for row in rows}

    def starts(self, key: str, since: float) -> int:
        row = self.sync.execute(
            "select count(*) from akadze.limit_starts where key = %s and started_at > to_timestamp(%s)",
            [key, since - self._offset],
        ).fetchone()
        assert row is not None
        return int(row[0])

    def effects(self) -> list[tuple[Any, ...]]:
        return self.sync.execute("select job_id, run from public.effects").fetchall()

    def beat(self, number: int) -> None:
        """As a worker beats, which writes its row anew if it is gone."""
        caller = sync_caller(self.sync)
        owner = str(self.owners[number])
        if not caller.rows(_BEAT, id=owner):
            caller.rows(_INSERT_WORKER, id=owner, hostname="here", pid=1, queues=list(QUEUES), ttl=TTL)

    def delete_worker(self, number: int) -> None:
        self.sync.execute("delete from akadze.workers where id = %s", [self.owners[number]])

    def call(
        self,
        colour: str,
        functions: tuple[Callable[..., Coroutine[Any, Any, Any]], Callable[..., Any]],
        *arguments: Any,
        commit: bool = True,
        adapt: bool = False,
        **named: Any,
    ) -> Any:
        """Call one of a pair of twins in a transaction of its colour; `adapt`: it takes a caller, not a connection."""
        if colour == SYNC:
            with self.sync.transaction(force_rollback=not commit):
                return functions[1](sync_caller(self.sync) if adapt else self.sync, *arguments, **named)

        async def awaited() -> Any:
            async with self.asynchronous.transaction(force_rollback=not commit):
                session = async_caller(self.asynchronous) if adapt else self.asynchronous
                return await functions[0](session, *arguments, **named)

        return self.run(awaited())

    def hooks(self, hooked: bool) -> list[Any]:
        return [self.watch] if hooked else []


def _body() -> None:
    """Called by drain only: the others claim and write outcomes themselves."""
