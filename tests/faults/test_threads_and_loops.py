"""Contract, section 1: one app in many threads, and on one event loop after another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from akadze import Akadze, Worker, current
from akadze.sync.testing import drain
from akadze.testing import drain as async_drain
from tests.families import FULL


@pytest.fixture
def app(database_url: str) -> Iterator[Akadze]:
    app = Akadze(database_url=database_url, pool_size=2)
    yield app
    asyncio.run(app.aclose())


def rows(database_url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database_url) as connection:
        return connection.execute(statement).fetchall()


def test_many_threads_enqueue_and_drain_at_once_though_the_engine_is_not_there_yet(
    app: Akadze, database_url: str
) -> None:
    threads = 8
    together = threading.Barrier(threads)
    ran: list[int] = []

    @app.task("task", max_attempts=1)
    def task(number: int) -> None:
        ran.append(number)

    def use(who: int) -> Any:
        together.wait()
        engine = app.sync_engine
        for number in range(10):
            with engine.begin() as connection:
                task.using(session=connection).enqueue(number=100 * who + number)
        together.wait()
        drain(app)
        return engine

    with ThreadPoolExecutor(threads) as pool:
        engines = list(pool.map(use, range(threads)))
    assert set(map(id, engines)) == {id(app.sync_engine)}
    assert sorted(ran) == sorted(100 * who + number for who in range(threads) for number in range(10))
    assert rows(database_url, "select distinct state, run_count from akadze.jobs") == [("succeeded", 1)]


@FULL
def test_an_app_may_be_used_on_one_loop_after_another(app: Akadze, database_url: str) -> None:
    @app.task("task", max_attempts=1)
    async def task(number: int) -> None:
        async with current().complete_tx() as connection:
            await connection.exec_driver_sql("select 1")

    async def send(number: int) -> None:
        async with app.engine.begin() as connection:
            await task.using(session=connection).enqueue(number=number)

    async def use(first: int) -> None:
        # More at once than the pool has connections, so that they wait for each other.
        await asyncio.gather(*[send(first + number) for number in range(20)])
        await async_drain(app)
        await app.aclose()  # the connections belong to this loop

    for first in range(0, 100, 20):
        asyncio.run(use(first))
    assert rows(database_url, "select state, count(*) from akadze.jobs group by 1") == [("succeeded", 100)]


def test_workers_may_serve_on_one_loop_after_another_and_on_several_at_once(database_url: str) -> None:
    def start(name: str) -> tuple[Akadze, Coroutine[Any, Any, None]]:
        app = Akadze(database_url=database_url)

        @app.task("task", max_attempts=1)
        async def task() -> str:
            return name

        async def serve() -> None:
            stop = asyncio.Event()
            serving = asyncio.create_task(Worker(app, slots=2, poll_interval=timedelta(seconds=0.05)).serve(stop))
            async with app.engine.begin() as connection:
                await task.using(session=connection).enqueue_many([{}] * 20)
            while not serving.done():
                async with app.engine.connect() as connection:
                    left = await connection.exec_driver_sql(
                        "select count(*) from akadze.jobs where state <> 'succeeded'"
                    )
                    if left.scalar_one() == 0:
                        break
                await asyncio.sleep(0.02)
            stop.set()
            await serving
            await app.aclose()

        return app, serve()

    for name in ("first", "second"):
        asyncio.run(start(name)[1])
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: asyncio.run(start(name)[1]), ["a", "b", "c"]))
    assert rows(database_url, "select distinct state, run_count, attempt from akadze.jobs") == [("succeeded", 1, 0)]
    assert rows(database_url, "select count(*) from akadze.jobs") == [(100,)]
    assert rows(database_url, "select count(*) from akadze.workers") == [(0,)]
