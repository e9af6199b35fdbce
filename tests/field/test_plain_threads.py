"""Contract, section 1: the blocking API where there is no loop, and where there is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import flask
import psycopg
import pytest

import akadze.metrics
import akadze.sync
import akadze.sync.metrics
import akadze.sync.testing
import akadze.testing
from akadze import Akadze
from tests.field.world import World
from tests.worker.table import Table


def use_all(app: Akadze, url: str, who: int) -> None:
    """Call each of them on a connection of this thread's own."""
    task = app.tasks["task"]
    with psycopg.connect(url) as connection:
        task.using(session=connection, meta={"who": who}).enqueue(n=0)
        task.using(session=connection, meta={"who": who}).enqueue_many([{"n": 1}, {"n": 2}])
        jobs = akadze.sync.list_jobs(connection, meta={"who": who})
        assert len(jobs) == 3
        akadze.sync.request_cancel(connection, jobs[0].id)
        akadze.sync.set_limit(connection, f"key{who}", 1)


def assert_all_there(rows: Callable[..., Any], threads: int) -> None:
    [found] = rows(
        "select count(*) as jobs, count(cancel_requested_at) as cancelled,"
        " (select count(*) from akadze.limits) as limits from akadze.jobs"
    )
    assert found == {"jobs": 3 * threads, "cancelled": threads, "limits": threads}


@pytest.fixture
def with_task(world: World) -> Akadze:
    app = Akadze(database_url=world.url)

    @app.task("task")
    def task(n: int) -> None: ...

    return app


def test_b148_the_blocking_api_works_in_the_main_thread_and_in_many_at_once(world: World, with_task: Akadze) -> None:
    use_all(with_task, world.url, 0)
    with ThreadPoolExecutor(20) as pool:
        for future in [pool.submit(use_all, with_task, world.url, who) for who in range(1, 21)]:
            future.result(60)
    assert_all_there(world.rows, 21)


async def test_b148_the_blocking_api_works_inside_a_coroutine(app: Akadze, table: Table, database_url: str) -> None:
    @app.task("task")
    def task(n: int) -> None: ...

    use_all(app, database_url, 0)
    assert await table.value("select count(*) from akadze.jobs") == 3


def test_b148_the_blocking_api_works_in_a_flask_view(world: World, with_task: Akadze) -> None:
    web = flask.Flask("web")

    @web.post("/<int:who>")
    def view(who: int) -> str:
        use_all(with_task, flask.current_app.config["DATABASE"], who)
        return "sent"

    web.config["DATABASE"] = world.url
    assert web.test_client().post("/0").text == "sent"
    assert_all_there(world.rows, 1)


def test_b148_the_blocking_api_works_in_an_exit_handler(world: World) -> None:
    done = world.program(
        """
        import atexit, os
        from akadze import Akadze
        from tests.field.test_plain_threads import use_all

        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
        app.register(lambda n: None, name="task")
        atexit.register(use_all, app, os.environ["AKADZE_DATABASE_URL"], 0)
        """
    )
    assert (done.wait(), done.stderr) == (0, "")
    assert_all_there(world.rows, 1)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (akadze, akadze.sync),
        (akadze.metrics, akadze.sync.metrics),
        (akadze.testing, akadze.sync.testing),
    ],
    ids=["akadze", "metrics", "testing"],
)
def test_b148_both_colours_have_the_same_names_options_and_defaults(one: ModuleType, other: ModuleType) -> None:
    assert other.__all__
    for name in other.__all__:
        found, twin = getattr(other, name), getattr(one, name)
        if inspect.isfunction(found):
            assert inspect.iscoroutinefunction(twin) or name == "current"
            assert not inspect.iscoroutinefunction(found)
            assert parameters(found) == parameters(twin)
        else:
            assert found is twin
    missing = {name for name in one.__all__ if inspect.iscoroutinefunction(getattr(one, name))} - set(other.__all__)
    assert missing == set()
