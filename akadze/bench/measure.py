"""The measurements: akadze and plain SQL in turn, on a scratch database that is dropped at the end."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

import psycopg

from akadze._async.schema import migrate
from akadze._connections import async_caller
from akadze._statement import Statement, statement
from akadze._urls import libpq_url
from akadze.app import Akadze
from akadze.bench.show import Progress, show
from akadze.errors import AkadzeError
from akadze.worker import Worker

_CREATE_DATABASE = statement("bench", "create_database")
_DROP_DATABASE = statement("bench", "drop_database")
_CREATE_TABLE = statement("bench", "create_table")
_CREATE_INDEX = statement("bench", "create_index")
_INSERT_BARE = statement("bench", "insert_bare")
_COPY_BARE = statement("bench", "copy_bare")
_FILL_BARE = statement("bench", "fill_bare")
_FILL_JOBS = statement("bench", "fill_jobs")
_EXCHANGE_BARE = statement("bench", "exchange_bare")
_EMPTY_TABLES = statement("bench", "empty_tables")
_VACUUM = statement("bench", "vacuum")
_SERVER_SETTINGS = statement("bench", "server_settings")

_NAME: Final = "akadze_bench"
_JOBS: Final = 10_000
_SINGLE_SECONDS: Final = 1.5
_LATENCIES: Final = 60
_LATENCY_PAUSE: Final = 0.03  # seconds between two jobs


@dataclass
class Figure:
    """One row of the result: the medians of akadze and of plain SQL, and which way is better."""

    name: str
    unit: str
    akadze: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    @property
    def medians(self) -> tuple[float, float | None]:
        return statistics.median(self.akadze), statistics.median(self.plain) if self.plain else None


async def run(database_url: str, *, rounds: int) -> None:
    """Measure on the server of ``database_url`` and print a table.

    Makes the database ``akadze_bench`` there, which needs the right to create databases, and drops it at the end.
    Raises AkadzeError if that database exists.
    """
    async with await _connect(database_url) as admin:
        try:
            await admin.rows(_CREATE_DATABASE)
        except psycopg.errors.DuplicateDatabase:
            raise AkadzeError(
                f"there is a database {_NAME} on this server: another benchmark runs, or one was killed; then drop it"
            ) from None
        try:
            settings = (await admin.rows(_SERVER_SETTINGS))[0]
            figures = await _measure(libpq_url(database_url, database=_NAME), rounds)
        finally:
            await admin.rows(_DROP_DATABASE)
    show(figures, settings, rounds)


async def _measure(url: str, rounds: int) -> list[Figure]:
    await migrate(url)
    single = Figure("enqueue one by one", "jobs/s")
    many = Figure("enqueue_many of 10 000", "jobs/s")
    drains = {slots: Figure(f"run 10 000, slots={slots}", "jobs/s") for slots in (10, 100)}
    latency = Figure("pick-up, median", "ms")
    late = Figure("pick-up, 99 of 100", "ms")
    async with await _connect(url) as connection:
        await connection.rows(_CREATE_TABLE)
        await connection.rows(_CREATE_INDEX)
        with Progress(rounds * 7) as progress:

            async def measured(into: list[float], work: Callable[[], Awaitable[float]]) -> None:
                await connection.rows(_EMPTY_TABLES)
                await connection.rows(_VACUUM)
                into.append(await work())
                progress.advance()

            for _ in range(rounds):
                await measured(single.akadze, lambda: _enqueue_single(url))
                await measured(single.plain, lambda: _insert_single(url))
                await measured(many.akadze, lambda: _enqueue_many(url))
                await measured(many.plain, lambda: _copy_many(url))
                for slots, figure in drains.items():
                    await measured(figure.akadze, lambda slots=slots: _drain(url, connection, slots))  # type: ignore[misc]
                    await measured(figure.plain, lambda slots=slots: _drain_bare(url, connection, slots))  # type: ignore[misc]
                    progress.advance(-1)
                await connection.rows(_EMPTY_TABLES)
                waits = sorted(await _latencies(url))
                latency.akadze.append(statistics.median(waits))
                late.akadze.append(waits[int(len(waits) * 0.99)])
                progress.advance()
    return [single, many, *drains.values(), latency, late]


class _Connection:
    """A psycopg connection in autocommit that runs named statements."""

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.raw.close()

    async def rows(self, statement: Statement, **parameters: Any) -> list[dict[str, Any]]:
        return await async_caller(self.raw).rows(statement, **parameters)


async def _connect(url: str) -> _Connection:
    return _Connection(await psycopg.AsyncConnection.connect(libpq_url(url), autocommit=True))


def _app(url: str, body: Callable[[int], object] | None = None) -> Akadze:
    app = Akadze(database_url=url)

    @app.task("bench.nothing")
    async def nothing(number: int) -> None:
        if body is not None:
            body(number)

    return app


async def _enqueue_single(url: str) -> float:
    app = _app(url)
    task = app.tasks["bench.nothing"]
    async with await _connect(url) as connection:
        return await _per_second(lambda: task.using(session=connection.raw).enqueue(number=1))


async def _insert_single(url: str) -> float:
    async with await _connect(url) as connection:
        return await _per_second(lambda: connection.rows(_INSERT_BARE, args='{"number": 1}'))


async def _per_second(work: Callable[[], Awaitable[Any]]) -> float:
    for _ in range(20):
        await work()
    start = now = time.perf_counter()
    done = 0
    while now < start + _SINGLE_SECONDS:
        await work()
        done += 1
        now = time.perf_counter()
    return done / (now - start)


async def _enqueue_many(url: str) -> float:
    task = _app(url).tasks["bench.nothing"]
    async with await _connect(url) as connection:
        start = time.perf_counter()
        await task.using(session=connection.raw).enqueue_many({"number": number} for number in range(_JOBS))
        return _JOBS / (time.perf_counter() - start)


async def _copy_many(url: str) -> float:
    async with await _connect(url) as connection, connection.raw.cursor() as cursor:
        start = time.perf_counter()
        async with cursor.copy(_COPY_BARE.sql) as copy:
            for _ in range(_JOBS):
                await copy.write_row(('{"number": 1}',))
        return _JOBS / (time.perf_counter() - start)


async def _drain(url: str, connection: _Connection, slots: int) -> float:
    await connection.rows(_FILL_JOBS, count=_JOBS)
    await connection.rows(_VACUUM)
    done, first, last = 0, 0.0, asyncio.Event()

    def body(_number: int) -> None:
        nonlocal done, first
        first = first or time.perf_counter()
        done += 1
        if done == _JOBS:
            last.set()

    app = _app(url, body)
    async with _serving(app, slots=slots):
        await last.wait()
        end = time.perf_counter()
    await app.aclose()
    return _JOBS / (end - first)


async def _drain_bare(url: str, connection: _Connection, slots: int) -> float:
    await connection.rows(_FILL_BARE, count=_JOBS)
    await connection.rows(_VACUUM)
    async with await _connect(url) as worker:
        worker.raw.prepare_threshold = 0
        start = time.perf_counter()
        ended: list[int] = []
        while rows := await worker.rows(_EXCHANGE_BARE, ended=ended, slots=slots):
            ended = [row["id"] for row in rows]
        return _JOBS / (time.perf_counter() - start)


async def _latencies(url: str) -> list[float]:
    arrived: dict[int, float] = {}
    app = _app(url, lambda number: arrived.setdefault(number, time.perf_counter()))
    task = app.tasks["bench.nothing"]
    sent: dict[int, float] = {}
    async with _serving(app, slots=10), await _connect(url) as connection:
        for number in range(-5, _LATENCIES):
            await task.using(session=connection.raw).enqueue(number=number)
            sent[number] = time.perf_counter()
            await asyncio.sleep(_LATENCY_PAUSE)
        while len(arrived) < len(sent):  # noqa: ASYNC110 - the bodies run in this very loop
            await asyncio.sleep(_LATENCY_PAUSE)
    await app.aclose()
    return [max(arrived[number] - sent[number], 0) * 1000 for number in range(_LATENCIES)]


class _serving:  # noqa: N801 - used as a function
    """A worker in this process."""

    def __init__(self, app: Akadze, *, slots: int) -> None:
        self._worker = Worker(app, slots=slots)
        self._stop = asyncio.Event()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._worker.serve(self._stop))

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._task
