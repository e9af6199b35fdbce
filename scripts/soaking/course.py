"""The course of a soak: a server of its own, the crew on it, faults for so long, peace, and the checks."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg

import akadze.sync
from akadze import dev
from soaking import crew, evidence, log, show
from soaking.checks import find_broken
from soaking.crew import Member
from soaking.faults import Faults
from soaking.kinds import CHANGING, RATED, STEADY
from soaking.proxy import Network

#: Sessions that do nothing in a transaction, as those of frozen workers, do not keep their locks for long.
_SETTINGS = {"idle_in_transaction_session_timeout": "3s", "max_connections": "150"}
#: Seconds in which everything has to come to its end after the last fault.
_PEACE = 180.0
_UNFINISHED = evidence.QUESTIONS["unfinished"].encode()


async def soak(*, seconds: float, seed: int, pause: float) -> int:
    """Run a soak and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="akadze-soak-") as folder, _own_server() as server:
        directory = Path(folder)
        os.environ[log.VARIABLE] = folder
        url = server.url()
        _prepare(url)
        async with _network(url) as network:
            workers = _workers(url, network.url, directory)
            producers = [
                crew.producer("async", network.url, directory, seed),
                crew.producer("sync", url, directory, seed),
            ]
            try:
                await _run(server, url, network, workers, producers, seconds=seconds, seed=seed, pause=pause)
            finally:
                for member in [*workers, *producers]:
                    member.kill()
        try:
            found = evidence.read(url, directory)
            broken = find_broken(found)
        except BaseException:
            _keep(directory)
            raise
        print(show.summary(found, broken, seed=seed, seconds=seconds), flush=True)
        if broken:
            print(show.failures(found, broken), flush=True)
            _keep(directory)
        return 1 if broken else 0


@contextmanager
def _own_server() -> Iterator[dev.Server]:
    with dev.start(tcp=True, settings=_SETTINGS) as server:
        yield server


@asynccontextmanager
async def _network(url: str) -> AsyncIterator[Network]:
    network = Network(url)
    await network.start()
    try:
        yield network
    finally:
        await network.end()


def _prepare(url: str) -> None:
    akadze.sync.migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(evidence.HISTORY.encode())
        for key, most in STEADY.items():
            akadze.sync.set_limit(connection, key, max_running=most)
        key, most, window = RATED
        akadze.sync.set_limit(connection, key, max_starts=most, window=timedelta(seconds=window))


def _workers(url: str, through_network: str, directory: Path) -> list[Member]:
    return [
        crew.worker("worker-direct", url, directory, "--slots", "4"),
        crew.worker("worker-fair", url, directory, "--slots", "6", "--fair"),
        crew.worker("worker-far", through_network, directory, "--slots", "5"),
        crew.worker("worker-far-fair", through_network, directory, "--slots", "3", "--fair"),
    ]


async def _run(
    server: dev.Server,
    url: str,
    network: Network,
    workers: list[Member],
    producers: list[Member],
    *,
    seconds: float,
    seed: int,
    pause: float,
) -> None:
    for member in [*workers, *producers]:
        member.start()
    await _until(url, b"select count(*) >= 4 from akadze.workers", within=60)
    log.write("serving")
    stopped = asyncio.Event()
    faults = asyncio.create_task(Faults(server, url, network, workers, seed=seed, pause=pause).go_on(stopped))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.wait([faults], timeout=min(60.0, end - time.monotonic()))
        if faults.done():
            break
        _progress(url, end - time.monotonic())
    log.write("served")
    stopped.set()
    await faults
    await asyncio.gather(*[member.stop(within=40) for member in producers])
    with psycopg.connect(url, autocommit=True) as connection:
        akadze.sync.resume_queue(connection, "side")
        for key in CHANGING:
            akadze.sync.clear_limit(connection, key)
    asked = await _until(url, f"select ({evidence.QUESTIONS['unfinished'].strip()}) = 0".encode(), within=_PEACE)
    log.write("all ended", asked=asked)
    await asyncio.gather(*[member.stop(within=40) for member in workers])


async def _until(url: str, question: bytes, *, within: float) -> float:
    """Wait until the answer is true, or for so long: the checks say then what is missing. Return the time of asking."""
    end = time.monotonic() + within
    while True:
        asked = time.time()
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                row = connection.execute(question).fetchone()
        except psycopg.OperationalError:
            row = None
        if (row is not None and row[0]) or time.monotonic() > end:
            return asked
        await asyncio.sleep(0.2)


def _progress(url: str, left: float) -> None:
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            row = connection.execute(_UNFINISHED).fetchone()
        print(f"{left:.0f} s left, {row[0] if row else '?'} jobs not finished", file=sys.stderr, flush=True)
    except psycopg.OperationalError:
        pass


def _keep(directory: Path) -> None:
    """Leave the log of a failed soak where somebody can read it."""
    kept = Path(tempfile.mkdtemp(prefix="akadze-soak-failed-"))
    for path in directory.iterdir():
        (kept / path.name).write_bytes(path.read_bytes())
    print(f"the run log and what the processes wrote are kept in {kept}", flush=True)
