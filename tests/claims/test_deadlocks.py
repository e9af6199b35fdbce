"""Contract, section 9: everything at once for some seconds: nothing deadlocks, and every job ends as it may."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg

from akadze import Akadze, AkadzeError, DuplicateJob, clear_limit, request_cancel, requeue, set_limit
from akadze._async import transitions
from akadze._connections import async_caller
from akadze._statement import statement
from akadze._worker.exchange import Exchange
from akadze.task import Task
from tests.claims.clients import Client, Watcher
from tests.claims.exchanges import done
from tests.claims.fixtures import Connect
from tests.claims.line import Line
from tests.waiting import until

_DELETE_OLD_JOBS = statement("cleanup", "delete_old_jobs")
_DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
_WRONG = """
select count(*) from akadze.jobs
where (state = 'running') <> (worker_id is not null) or (state in ('queued', 'running')) <> (finished_at is null)
  or jsonb_array_length(errors) > 10 or attempt > max_attempts
"""
_PICK = "select id from akadze.jobs where state = any (%s) order by md5(cast(id as text) || %s) limit 1"
_KEYS = ["a", "b", "c", None]
#: Seconds.
_LENGTH = 10.0


class Stress:
    """What goes on, and how often."""

    def __init__(self, app: Akadze, task: Task[[]], line: Line) -> None:
        self.app = app
        self.task = task
        self.line = line
        self.end = time.monotonic() + _LENGTH
        self.counts: Counter[str] = Counter()

    @property
    def on(self) -> bool:
        return time.monotonic() < self.end

    async def work(self, seed: int, *, fair: bool, look: bool) -> None:
        """A worker: claims, writes outcomes, and now and then loses its lease and begins as a new one."""
        chance = random.Random(seed)
        while self.on:
            exchange = Exchange(self.app, uuid4(), ["default"], fair=fair)
            await self.line.register(exchange._worker_id, ttl=0.3)
            running: list[tuple[Any, ...]] = []
            life = time.monotonic() + chance.uniform(0.3, 1.5)
            while self.on and time.monotonic() < life:
                await self.line.client.sql(
                    "update akadze.workers set heartbeat_at = now(), sleeping = %s where id = %s",
                    [chance.random() < 0.5, exchange._worker_id],
                )
                if chance.random() < 0.02:
                    await asyncio.sleep(0.35)  # the lease is over, and it does not know
                if look:
                    await exchange.survey()
                ended = [row for row in running if chance.random() < 0.6]
                states = ["succeeded", "succeeded", "failed", "queued", "cancelled"]
                sent = [done(row, chance.choice(states)) for row in ended]
                answer = await exchange.exchange(sent, {"default": max(10 - len(running), 1)})
                missing = [outcome[:2] for outcome in sent if outcome[:2] not in answer.written]
                owned = await exchange.owned(missing) if missing else set()
                lost = {*missing} - owned
                gone = answer.written | lost
                running = [row for row in running if (row[0], row[6]) not in gone] + answer.rows
                self.counts.update(claimed=len(answer.rows), written=len(answer.written), lost=len(lost))
            await exchange.give_up()

    async def enqueue(self, seed: int, client: Client) -> None:
        chance = random.Random(seed)
        while self.on:
            options: dict[str, Any] = {
                "unique_key": chance.choice([None, None, f"u{chance.randrange(20)}"]),
                "limit_key": chance.choice(_KEYS),
                "priority": chance.randrange(3),
            }
            try:
                await self.task.using(session=client.raw, **options).enqueue()
                self.counts["enqueued"] += 1
            except DuplicateJob:
                self.counts["duplicates"] += 1
            if chance.random() < 0.05:
                await client.sql(
                    "update akadze.jobs set expires_at = now() where id = ("
                    " select id from akadze.jobs where state = 'queued' limit 1 for update skip locked)"
                )

    async def keep_up(self, client: Client) -> None:
        """Rescue, cancellations and retention."""
        caller = async_caller(client.raw)
        after = 0
        while self.on:
            async with client.transaction():
                self.counts["rescued"] += len(await transitions.rescue(caller, []))
            async with client.transaction():
                self.counts["swept"] += len(await transitions.cancel_doomed(caller, [], None))
            (step,) = await client.run(_DELETE_OLD_JOBS, after=after, retention=2.0)
            self.counts["deleted"] += step["deleted"]
            after = step["last_id"] if step["more"] else 0
            await asyncio.sleep(0.01)

    async def operate(self, seed: int, client: Client, *, at_most: int) -> None:
        """A caller who changes limits and jobs, up to so many of them in one transaction, in any order."""
        chance = random.Random(seed)
        while self.on:
            steps = chance.sample(["limit", "cancel", "requeue"], chance.randint(1, at_most))
            async with client.transaction():
                for step in steps:
                    await self._operate(step, chance, client)
                await asyncio.sleep(chance.choice([0, 0.001, 0.01]))
            self.counts["transactions of callers"] += 1

    async def _operate(self, step: str, chance: random.Random, client: Client) -> None:
        if step == "limit":
            key = chance.choice("abc")
            if chance.random() < 0.2:
                await clear_limit(client.raw, key)
            else:
                await set_limit(client.raw, key, chance.randint(1, 5))
            return
        states = ["queued", "running"] if step == "cancel" else ["failed"]
        for row in await client.sql(_PICK, [states, str(chance.random())]):
            call = request_cancel if step == "cancel" else requeue
            try:
                await call(client.raw, row["id"])
                self.counts[step] += 1
            except AkadzeError:
                self.counts[f"refused {step}"] += 1


async def test_workers_upkeep_and_callers_do_not_deadlock(app: Akadze, line: Line, connect: Connect) -> None:
    async def body() -> None: ...

    task = app.register(body, name="work")
    await line.limit("a", 2)
    await line.limit("b", 4)
    before = await line.client.value(_DEADLOCKS)
    stress = Stress(app, task, line)

    async with asyncio.TaskGroup() as group:
        # Two that look ahead claim as limits need it, one is fair, two claim as if there were none.
        for seed, (fair, look) in enumerate(
            [(False, True), (False, True), (True, True), (False, False), (False, False)]
        ):
            group.create_task(stress.work(seed, fair=fair, look=look))
        group.create_task(stress.enqueue(11, await connect()))
        group.create_task(stress.enqueue(12, await connect()))
        group.create_task(stress.keep_up(await connect()))
        group.create_task(stress.keep_up(await connect()))
        # Two callers that lock several things in different orders could deadlock each other: only one does.
        group.create_task(stress.operate(21, await connect(), at_most=3))
        group.create_task(stress.operate(22, await connect(), at_most=1))

    await line.client.sql("select pg_stat_clear_snapshot()")
    assert await line.client.value(_DEADLOCKS) == before
    assert await line.client.value(_WRONG) == 0
    quiet = [
        name
        for name in ("claimed", "written", "lost", "rescued", "swept", "cancel", "requeue")
        if not stress.counts[name]
    ]
    assert not quiet, f"too quiet to show anything: {stress.counts}"


async def test_a_deadlock_would_be_counted(line: Line, connect: Connect, watcher: Watcher) -> None:
    """Two callers whose orders differ."""
    await line.limit("a", 2)
    job_id = await line.add_one()
    before = await line.client.value(_DEADLOCKS)
    first, second = await connect(), await connect()

    await first.begin()
    await set_limit(first.raw, "a", 1)
    await second.begin()
    await request_cancel(second.raw, job_id)
    waiting = await watcher.start_and_see_waiting(request_cancel(first.raw, job_id))
    results = await asyncio.gather(set_limit(second.raw, "a", 1), waiting, return_exceptions=True)

    assert [type(result) for result in results].count(psycopg.errors.DeadlockDetected) == 1
    for client in (first, second):
        await client.rollback()

    async def counted() -> bool:
        return bool(await line.client.value(_DEADLOCKS) == before + 1)

    await until(counted)
