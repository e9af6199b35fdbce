"""Measure claims of ten jobs on lines of different lengths, with and without keys, limits and a fair claim.

uv run python scripts/measure_claims.py [--rows 1000,100000,1000000] [--claims 60]

It starts a PostgreSQL of its own, with the settings that PostgreSQL ships, and prints a table of medians in
milliseconds: one claim is the whole exchange as a worker makes it, from the call to the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median
from uuid import uuid4

import psycopg

from akadze import Akadze, dev, migrate
from akadze._worker.exchange import Exchange

FILL = """
insert into akadze.jobs (task, queue, args, limit_key)
select 'noop', 'line', '{"i": 1}',
  case when g <= %(blocked)s then 'blocked' when %(keys)s > 0 then 'k' || g %% %(keys)s end
from generate_series(1, %(rows)s) as g
"""
WORKER = """
insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl) values (%s, 'here', 1, '{line}', '1 hour')
"""

LIMITS = "insert into akadze.limits (key, max_running) select 'k' || g, 1000000 from generate_series(0, %s) as g"

#: Name, number of keys, part of the line at its head that a limit blocks, whether keys have limits, fair.
CASES = [
    ("plain, no keys", 0, 0.0, False, False),
    ("plain, 100 keys", 100, 0.0, False, False),
    ("limits, 1 key", 1, 0.0, True, False),
    ("limits, 100 keys", 100, 0.0, True, False),
    ("limits, 10,000 keys", 10_000, 0.0, True, False),
    ("limits, 90 % blocked at the head", 100, 0.9, True, False),
    ("fair, 1 key", 1, 0.0, False, True),
    ("fair, 100 keys", 100, 0.0, False, True),
    ("fair, 10,000 keys", 10_000, 0.0, False, True),
    ("fair, 90 % blocked at the head", 100, 0.9, True, True),
]


async def measure(url: str, rows: int, claims: int, keys: int, blocked: float, limited: bool, fair: bool) -> float:
    """Return the median milliseconds of a claim of ten."""
    worker = uuid4()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("truncate akadze.jobs, akadze.limits, akadze.workers, akadze.limit_starts")
        await connection.execute(FILL, {"rows": rows, "blocked": int(rows * blocked), "keys": keys})
        await connection.execute(WORKER, [worker])
        if blocked:
            await connection.execute("insert into akadze.limits (key, max_running) values ('blocked', 0)")
        if limited:
            await connection.execute(LIMITS, [keys - 1])
        await connection.execute("vacuum analyze")
    app = Akadze(database_url=url)

    @app.task("noop", queue="line")
    async def noop(i: int) -> None: ...

    exchange = Exchange(app, worker, ["line"], fair=fair)
    times = []
    try:
        await exchange.survey()
        # A short line with most of it blocked holds only a few claims.
        free = int(rows * (1 - blocked)) // 10
        warm = min(10, free // 4)
        for _ in range(min(claims, free - warm) + warm):
            start = time.perf_counter()
            answer = await exchange.exchange([], {"line": 10})
            times.append((time.perf_counter() - start) * 1000)
            if len(answer.rows) != 10:
                raise RuntimeError(f"a claim brought {len(answer.rows)} of 10 jobs")
    finally:
        await exchange.give_up()
        await app.aclose()
    return median(times[warm:])


async def main(lengths: list[int], claims: int) -> None:
    with dev.start(durable=True, tcp=True) as server:
        url = server.url()
        await migrate(url)
        print(f"{'ms per claim of 10 (median)':<36}" + "".join(f"{rows:>12,}" for rows in lengths))
        for name, keys, blocked, limited, fair in CASES:
            found = [await measure(url, rows, claims, keys, blocked, limited, fair) for rows in lengths]
            print(f"{name:<36}" + "".join(f"{value:>12.2f}" for value in found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1000,100000,1000000")
    parser.add_argument("--claims", type=int, default=60)
    options = parser.parse_args()
    asyncio.run(main([int(rows) for rows in options.rows.split(",")], options.claims))
