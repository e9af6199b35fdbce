"""Contract, sections 1, 3, 5 and 8: processes, threads, loops and signatures."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from akadze import Akadze, AkadzeError, EnqueueError, Snooze, Worker, current, dev
from akadze._worker.loop import Loop
from akadze.testing import drain
from tests.database import create_database
from tests.families import FULL
from tests.field.world import OPTIONS, World
from tests.frameworks.django.conftest import Manage
from tests.frameworks.django.test_connections import Shop
from tests.waiting import until, wait_until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue, enqueue_many

FORKING = """
import asyncio, os, sys
from akadze import Akadze

app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
runner = asyncio.Runner()

@app.task("task")
async def task(who: int, number: int) -> None: ...

async def send_async(who, count):
    for number in range(count):
        async with app.engine.begin() as connection:
            await task.using(session=connection).enqueue(who=who, number=number)

def send(who, count):
    if sys.argv[1] == "async":
        (runner.run if who == 0 else asyncio.run)(send_async(who, count))
        return
    for number in range(count):
        with app.sync_engine.begin() as connection:
            task.using(session=connection).enqueue(who=who, number=number)

send(0, 1)
children = []
for who in range(1, 5):
    child = os.fork()
    if child == 0:
        send(who, 100)
        os._exit(0)
    children.append(child)
send(0, 100)
codes = [os.waitpid(child, 0)[1] for child in children]
runner.run(app.aclose())
runner.close()
sys.exit(any(codes))
"""


@FULL
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_b140_an_app_used_before_a_fork_works_on_both_sides(world: World, colour: str) -> None:
    done = world.program(FORKING, colour)
    assert (done.wait(60), done.stderr) == (0, "")
    found = world.rows(
        "select cast(args ->> 'who' as integer) as who, count(*) as jobs,"
        " count(distinct args ->> 'number') as numbers from akadze.jobs group by 1 order by 1"
    )
    assert [(row["who"], row["jobs"], row["numbers"]) for row in found] == [
        (0, 101, 100),
        *((who, 100, 100) for who in range(1, 5)),
    ]


@FULL
@pytest.mark.heavy
def test_b142_connections_of_django_neither_pile_up_nor_stay_dead(
    own_server: dev.Server, tmp_path: Path, full: bool
) -> None:
    before, after = (200, 20) if full else (20, 8)
    shop = Shop(create_database(own_server.url(), "shop"))
    manage = Manage(own_server.url(), "shop")
    try:
        manage("migrate", "--verbosity", "0")
        options = ["--slots", "4", "--heartbeat-ttl", "60s", "--poll-interval", "200ms"]
        worker = manage.start("akadze_worker", *options, log=tmp_path / "log")
        shop.enqueue(before // 2)  # as many of a plain function, and of an async one
        wait_until(lambda: shop.states() == {"succeeded": before}, timeout=120)
        assert shop.djangos_connections() <= 4
        wait_until(lambda: shop.djangos_connections() == 0)
        own_server.restart()
        shop.enqueue(after // 2)
        wait_until(lambda: shop.states() == {"succeeded": before + after}, timeout=120)
        assert worker.process.poll() is None
    finally:
        manage.end()


class Address(BaseModel):
    street: str


Place = Address | None


def deliver(a: Address, at: Place = None, n: "int | None" = None) -> list[str]:  # noqa: UP037 - text within text
    return [type(a).__name__, type(at).__name__, type(n).__name__]


@functools.wraps(deliver)
def wrapped(*args: Any, **kwargs: Any) -> list[str]:
    return deliver(*args, **kwargs)


@pytest.mark.parametrize("fn", [deliver, wrapped])
async def test_b143_annotations_that_are_text_are_resolved(app: Akadze, table: Table, fn: Callable[..., Any]) -> None:
    task = app.register(fn, name="task")
    address = Address(street="s")
    first = await enqueue(task, {"a": address})
    second = await enqueue(task, {"a": {"street": "s"}, "at": address, "n": 7})
    for wrong in ({"a": "s"}, {"a": {"town": "t"}}, {"a": address, "n": "many"}, {"a": address, "at": 7}):
        with pytest.raises(EnqueueError):
            await enqueue(task, wrong)
    await drain(app)
    results = [row["result"] for row in await table.jobs(first, second)]
    assert results == [["Address", "NoneType", "NoneType"], ["Address", "Address", "int"]]
    assert len(await table.states()) == 2


async def test_b143_a_class_of_the_function_body_works_or_is_refused(app: Akadze, table: Table) -> None:
    class Inner(BaseModel):
        street: str

    def seen(a: Inner) -> str:
        return type(a).__name__

    def hidden(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037 - on purpose

    try:
        task = app.register(seen, name="seen")
    except AkadzeError as error:
        assert "'a'" in str(error)  # noqa: PT017 - it may be refused, then with a reason
    else:
        job_id = await enqueue(task, {"a": Inner(street="s")})
        await drain(app)
        assert (await table.job(job_id))["result"] == "Inner"
    with pytest.raises(AkadzeError, match="'a' cannot be resolved"):
        app.register(hidden, name="hidden")


class Callable_:
    def __call__(self, n: int) -> int:
        return n

    def method(self, n: int) -> int:
        return n


class AsyncCallable:
    async def __call__(self, n: int) -> int:
        return n


def generator(n: int) -> Iterator[int]:
    yield n


def with_list(n: int, items: list[str] = []) -> list[Any]:  # noqa: B006 - the case is about it
    items.append("x")
    return [n, *items]


@pytest.mark.parametrize(
    "fn",
    [lambda n, /: n, lambda n, *rest: n, lambda n, **rest: n, generator],
    ids=["by place", "*args", "**kwargs", "generator"],
)
def test_b145_a_signature_that_cannot_work_is_refused_at_registration(app: Akadze, fn: Any) -> None:
    with pytest.raises(AkadzeError):
        app.register(fn, name="task")
    assert app.tasks == {}


def only_by_name(*, n: int) -> int:
    return n


def generic(n: int, items: list[str]) -> list[Any]:
    return [n, items]


def bounded(n: Annotated[int, Field(ge=1)]) -> int:
    return n


def odd_default(n: int, m: int = "m") -> list[Any]:  # type: ignore[assignment]
    return [n, m]


@pytest.mark.parametrize(
    ("fn", "given", "result"),
    [
        (only_by_name, {}, 1),
        (generic, {"items": ["a"]}, [1, ["a"]]),
        (bounded, {}, 1),
        (odd_default, {}, [1, "m"]),
        (with_list, {}, [1, "x"]),
        (functools.partial(generic, items=["b"]), {}, [1, ["b"]]),
        (Callable_().method, {}, 1),
        (Callable_(), {}, 1),
        (AsyncCallable(), {}, 1),
        (lambda n: n, {}, 1),
    ],
    ids=["by name", "list", "Annotated", "default", "mutable", "partial", "method", "object", "async object", "lambda"],
)
async def test_b145_any_callable_runs_rightly(
    app: Akadze, table: Table, fn: Any, given: Mapping[str, Any], result: Any
) -> None:
    task = app.register(fn, name="task")
    jobs = await enqueue_many(task, [{"n": 1, **given}] * 2)
    async with app.engine.begin() as connection:
        bound = task.using(session=connection)
        with pytest.raises(EnqueueError):
            await bound.enqueue(1)
        with pytest.raises(EnqueueError):
            await bound.enqueue(n=1, nosuch=2, **given)
        with pytest.raises(EnqueueError):
            await bound.enqueue(n=object(), **given)
    await drain(app)
    assert [(row["state"], row["result"]) for row in await table.jobs(*jobs)] == [("succeeded", result)] * 2
    assert len(await table.states()) == 2


async def test_b145_constraints_are_looked_at_before_any_row(app: Akadze, table: Table) -> None:
    with pytest.raises(EnqueueError):
        await enqueue(app.register(bounded, name="task"), {"n": 0})
    assert await table.states() == {}


def test_b146_a_worker_runs_and_stops_where_the_loop_takes_no_signal_handlers(world: World) -> None:
    worker = world.worker(
        """
        def refuse(*_):
            raise NotImplementedError

        asyncio.SelectorEventLoop.add_signal_handler = refuse
        asyncio.SelectorEventLoop.remove_signal_handler = refuse

        @app.task("task")
        async def task() -> None: ...
        """
    )
    [job_id] = world.enqueue("task")
    world.in_state(job_id, "succeeded")
    worker.interrupt()
    assert worker.wait() == 0
    assert "NotImplementedError" not in worker.stderr
    assert "Traceback" not in worker.stderr


def test_b146_serve_works_in_a_thread(world: World) -> None:
    app = Akadze(database_url=world.url)
    app.register(lambda: None, name="task")
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        await Worker(app, **{name: timedelta(seconds=value) for name, value in OPTIONS.items()}).serve(stop)
        await app.aclose()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        [job_id] = world.enqueue("task")
        world.in_state(job_id, "succeeded")
    finally:
        for loop, stop in loops:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
    assert not thread.is_alive()
    assert errors == []


def resources() -> dict[str, int]:
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_of_a_run(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "") == Loop._run.__qualname__


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_b149_nothing_is_kept_of_jobs_that_have_ended(
    app: Akadze, table: Table, serve: Serve, full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warm_up, more = (2000, 50_000) if full else (200, 1000)
    caplog.set_level(logging.CRITICAL, "akadze")  # pytest would keep each line, with its traceback

    async def hook(*_: Any) -> None: ...

    app.hooks.before_run.append(hook)
    app.hooks.after_run.append(hook)
    app.hooks.on_transition.append(hook)

    @app.task("plain")
    async def plain(n: int) -> None: ...

    @app.task("thread")
    def thread(n: int) -> None: ...

    together = threading.Barrier(20)

    @app.task("all threads", max_attempts=1)
    def all_threads() -> None:
        together.wait(30)

    @app.task("raise", max_attempts=1)
    async def fails(n: int) -> None:
        raise ValueError(n)

    @app.task("late", max_attempts=1, timeout=timedelta(seconds=0.01))
    async def late(n: int) -> None:
        await asyncio.sleep(600)

    @app.task("snooze")
    async def snoozes(n: int) -> None:
        if current().job.snoozes == 0:
            raise Snooze(timedelta(0))

    async def run(count: int) -> None:
        tasks = (plain, thread, fails, late, snoozes)
        for task in tasks:
            await enqueue_many(task, [{"n": n} for n in range(count // len(tasks))])
        await table.until("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')", timeout=900)
        await until(lambda: not any(map(is_of_a_run, asyncio.all_tasks())))  # the last slots are free, too

    await serve(slots=20)
    await enqueue_many(all_threads, [{}] * 20)  # there may be as many threads as slots, started when they are needed
    await run(warm_up)
    before, memory = resources(), resident_bytes()
    await run(more)
    grown = resident_bytes() - memory
    after = resources()
    assert {name: after[name] - before[name] for name in after if abs(after[name] - before[name]) > 5} == {}
    assert grown < 20 * 2**20
    assert await table.value("select count(*) from akadze.jobs where state = 'failed'") == 2 * (warm_up + more) // 5
