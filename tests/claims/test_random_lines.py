"""Contract, section 9: claims on random lines, against a picker that takes one job at a time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from akadze._statement import Statement, statement
from tests.claims.claiming import CHOOSE_FAIR, CHOOSE_LIMITED, Claimer
from tests.claims.clients import Client, variant
from tests.claims.fixtures import Connect
from tests.claims.line import ids
from tests.claims.picker import Waiting, pick

_TUNE_SESSION = statement("session", "tune_session")

_WAITING = """
select j.id, j.queue, j.priority, j.run_at, coalesce(j.limit_key, '') as key
from akadze.jobs j
where j.state = 'queued' and j.run_at <= now() and (j.expires_at is null or j.expires_at > now())
  and j.cancel_requested_at is null and j.task = any (%s)
"""
_RUNNING = """
select j.queue, coalesce(j.limit_key, '') as key, count(*) as jobs
from akadze.jobs j where j.state = 'running' group by j.queue, j.limit_key
"""


class RandomLine:
    """Jobs of all kinds in two queues; every choice comes from the seed."""

    def __init__(self, seed: int, *, limits: bool) -> None:
        chance = self.chance = random.Random(seed)
        self.rows = chance.choice([5, 60, 400, 1500, 1500])
        self.groups = chance.choice([1, 2, 5, 30, 120])
        self.tasks = ["a", "b", "c"][: chance.choice([1, 3])]
        self.slots = chance.choice([1, 2, 5, 5, 10, 30, 100])
        #: Of the front of the line.
        self.big = chance.choice([0, 0.97])
        self.unknown = chance.choice([0, 0, 0.97])
        self.later = chance.choice([0, 0.3])
        self.same_time = chance.random() < 0.5
        self.keys = ["big", *(f"k{number}" for number in range(self.groups))]
        self.max_running = {key: chance.choice([0, 1, 3, 20, 60]) for key in self.keys if chance.random() < 0.4}
        self.max_running |= {"big": chance.choice([0, 2, 5])} if chance.random() < 0.7 else {}
        self.max_starts = {key: chance.choice([0, 1, 3, 20]) for key in self.keys if chance.random() < 0.2}
        if not limits:
            self.max_running, self.max_starts = {}, {}
        self.started = {key: chance.randrange(5) for key in self.max_starts}

    def job(self, place: int) -> tuple[Any, ...]:
        chance, front = self.chance, place / self.rows
        key: str | None = f"k{chance.randrange(self.groups)}"
        if chance.random() < 0.15:
            key = None
        elif chance.random() < self.big and front < 0.8:
            key = "big"
        known = front > 0.7 or chance.random() >= self.unknown
        if chance.random() < self.later:
            run_at = "2099-01-01"
        else:
            run_at = "2020-01-01" if self.same_time else f"2020-01-01 00:00:{int(40 * front) + chance.randrange(20):02}"
        return (
            chance.choice(self.tasks) if known else "elsewhere",
            chance.choice(["default"] * 9 + ["other"]),
            chance.choice([0, 0, 0, 5]),
            f"{run_at}+00",
            key,
            "2020-01-01+00" if chance.random() < 0.05 else None,
            "2020-01-01+00" if chance.random() < 0.03 else None,
        )

    async def fill(self, client: Client) -> None:
        await client.sql("truncate akadze.jobs, akadze.limits, akadze.limit_starts")
        columns = "task, queue, priority, run_at, limit_key, expires_at, cancel_requested_at"
        async with client.raw.cursor() as cursor, cursor.copy(f"copy akadze.jobs ({columns}) from stdin") as copy:
            for place in range(self.rows):
                await copy.write_row(self.job(place))
        for _ in range(self.chance.choice([0, 3, 40])):
            await client.sql(
                "insert into akadze.jobs (task, queue, limit_key, state, worker_id)"
                " values ('a', %s, %s, 'running', gen_random_uuid())",
                [self.chance.choice(["default", "default", "other"]), self.chance.choice([None, *self.keys[:5]])],
            )
        for key in {*self.max_running, *self.max_starts}:
            await client.sql(
                'insert into akadze.limits (key, max_running, max_starts, "window") values (%s, %s, %s, %s)',
                [key, self.max_running.get(key), starts := self.max_starts.get(key), None if starts is None else "1 h"],
            )
        for key, count in self.started.items():
            await client.sql(
                "insert into akadze.limit_starts (key, started_at)"
                " select %s, clock_timestamp() - interval '30 min' from generate_series(1, %s)"
                " union all select %s, clock_timestamp() - interval '61 min' from generate_series(1, 3)",
                [key, count, key],
            )

    async def expected(self, client: Client, *, fair: bool) -> list[int]:
        """What the slots of queue "default" have to get."""
        jobs = [Waiting(**row) for row in await client.sql(_WAITING, [self.tasks]) if row["queue"] == "default"]
        everywhere = await client.sql(_RUNNING)
        room = {}
        for key in {*self.max_running, *self.max_starts}:
            busy = sum(row["jobs"] for row in everywhere if row["key"] == key)
            most = self.max_running.get(key)
            starts = self.max_starts.get(key)
            rooms = [] if most is None else [most - busy]
            rooms += [] if starts is None else [starts - self.started[key]]
            room[key] = min(rooms)
        running = {row["key"]: row["jobs"] for row in everywhere if row["queue"] == "default"}
        return pick(jobs, self.slots, room=room, running=running, fair=fair)


async def try_claim(claimer: Claimer, slots: int, **known: Any) -> tuple[dict[str, Any], list[int]]:
    """Claim and roll back: what was chosen, and which jobs were taken."""
    await claimer.client.begin()
    try:
        if claimer.choose is None:
            return {}, ids(await claimer.claim_plain(slots, **known))
        chosen = await claimer.choose_jobs(slots, **known)
        return chosen, ids(await claimer.take_jobs(slots))
    finally:
        await claimer.client.rollback()


@pytest.mark.parametrize("choose", [CHOOSE_LIMITED, CHOOSE_FAIR], ids=["limited", "fair"])
async def test_a_claim_takes_what_picking_one_by_one_would_take(connect: Connect, choose: Statement) -> None:
    client = await connect()
    await client.run(_TUNE_SESSION, local=False)
    deep = 0
    for seed in range(45):
        line = RandomLine(seed, limits=True)
        await line.fill(client)
        claimer = Claimer(client, choose=choose, tasks=line.tasks)

        chosen, picks = await try_claim(claimer, line.slots)

        expected = await line.expected(client, fair=choose is CHOOSE_FAIR)
        assert picks == expected, f"seed {seed}"
        # A bounded look at the lanes is exact while it sees all of them, and what was learned changes nothing.
        bounded = replace(claimer, lanes=300)
        known = [tuple(level) for level in chosen["windows"] or []]
        assert (await try_claim(bounded, line.slots, known=known))[1] == expected, f"seed {seed}, bounded and known"
        narrow = replace(claimer, near=line.chance.choice([0, 3, 20]))
        assert (await try_claim(narrow, line.slots))[1] == expected, f"seed {seed}, the lanes instead of the rows"
        deep += (chosen["lanes"] or 0) > 0
    assert deep >= 8, "few of these lines were long enough to look at lanes"


async def test_a_plain_claim_takes_what_picking_one_by_one_would_take(connect: Connect) -> None:
    client = await connect()
    await client.run(_TUNE_SESSION, local=False)
    for seed in range(25):
        line = RandomLine(seed, limits=False)
        await line.fill(client)

        picks = (await try_claim(Claimer(client, tasks=line.tasks), line.slots))[1]

        assert picks == await line.expected(client, fair=False), f"seed {seed}"


@pytest.mark.parametrize(
    ("choose", "change"),
    [
        (CHOOSE_FAIR, ("s.running + p.turn as load", "p.turn as load")),
        (CHOOSE_LIMITED, ("array_agg(f.id order by f.run_at, f.id)", "array_agg(f.id order by f.id)")),
        (CHOOSE_LIMITED, ("(select count(*) from near_fit) < l.room and", "false and")),
    ],
    ids=["fair without the running jobs", "limited without run_at", "limited without the lanes"],
)
async def test_a_choice_that_were_wrong_would_be_noticed(
    connect: Connect, choose: Statement, change: tuple[str, str]
) -> None:
    client = await connect()
    wrong = variant(choose, change)
    for seed in range(45):
        line = RandomLine(seed, limits=True)
        await line.fill(client)
        picks = (await try_claim(Claimer(client, choose=wrong, tasks=line.tasks), line.slots))[1]
        if picks != await line.expected(client, fair=choose is CHOOSE_FAIR):
            return
    raise AssertionError("no line has shown the difference")
