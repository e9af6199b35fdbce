"""Contract, sections 1 and 5: what a Worker refuses, and what it makes of its options."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from akadze import Akadze, AkadzeError, Worker

SECOND = timedelta(seconds=1)


@pytest.fixture
def registered(app: Akadze) -> Akadze:
    async def body() -> None:
        pass

    app.register(body, name="b", queue="b")
    app.register(body, name="a", queue="a")
    app.periodic("c", every=timedelta(hours=1), queue="c")(body)
    return app


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slots": 0}, "slots is 0"),
        ({"slots": 10**5000}, "slots is an int that cannot be shown"),
        ({"queues": 5}, "queues is 5: it must be a list of at least one queue name"),
        ({"slots": -1}, "slots is -1"),
        ({"slots": 10_001}, "slots is 10001"),
        ({"slots": True}, "slots is True"),
        ({"slots": 1.0}, "slots is 1.0"),
        ({"slots": "2"}, "slots is '2'"),
        ({"heartbeat_interval": 5}, "heartbeat_interval is of type int"),
        ({"heartbeat_interval": timedelta(0)}, "heartbeat_interval is 0:00:00"),
        ({"heartbeat_ttl": 30.0}, "heartbeat_ttl is of type float"),
        ({"heartbeat_ttl": -SECOND}, "heartbeat_ttl"),
        ({"heartbeat_ttl": timedelta(days=366)}, "365 days"),
        ({"heartbeat_interval": SECOND, "heartbeat_ttl": 1.9 * SECOND}, "at least twice the interval"),
        ({"poll_interval": timedelta(0)}, "poll_interval is 0:00:00"),
        ({"poll_interval": None}, "poll_interval is of type NoneType"),
        ({"shutdown_timeout": -SECOND}, "shutdown_timeout"),
        ({"shutdown_timeout": 10}, "shutdown_timeout is of type int"),
        ({"queues": []}, "queues is []: it must be a list of at least one queue name"),
        ({"queues": (name for name in ())}, "queues is []"),
        ({"queues": "default"}, "queues is 'default'"),
        ({"queues": [""]}, "queue"),
        ({"queues": [None]}, "queue"),
        ({"queues": ["a", "x" * 600]}, "at most 512"),
        ({"queues": ["a\0b"]}, "queue"),
    ],
)
def test_options_that_cannot_work_are_refused(registered: Akadze, options: dict[str, Any], words: str) -> None:
    with pytest.raises(AkadzeError) as caught:
        Worker(registered, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("app", [None, "module:app", Akadze])
def test_an_app_that_is_none_is_refused(app: Any) -> None:
    with pytest.raises(AkadzeError, match="pass the Akadze app"):
        Worker(app)


def test_the_options_at_their_limits_are_taken(registered: Akadze) -> None:
    least = Worker(
        registered,
        slots=1,
        heartbeat_interval=timedelta(milliseconds=10),
        heartbeat_ttl=timedelta(milliseconds=20),
        poll_interval=timedelta(milliseconds=1),
        shutdown_timeout=timedelta(0),
    )
    assert least.shutdown_timeout == timedelta(0)
    year = timedelta(days=365)
    most = Worker(
        registered,
        slots=10_000,
        heartbeat_interval=year / 2,
        heartbeat_ttl=year,
        poll_interval=year,
        shutdown_timeout=year,
    )
    assert most.heartbeat_ttl == year


def test_the_defaults_are_the_documented_ones(registered: Akadze) -> None:
    worker = Worker(registered)
    assert worker.slots == 1
    assert worker.heartbeat_interval == timedelta(seconds=5)
    assert worker.heartbeat_ttl == timedelta(seconds=30)
    assert worker.poll_interval == timedelta(seconds=1)
    assert worker.shutdown_timeout == timedelta(seconds=10)
    assert not worker.fair
    assert worker.id is None


def test_without_queues_a_worker_takes_those_of_all_tasks_and_schedules(registered: Akadze) -> None:
    assert Worker(registered).queues == ["a", "b", "c"]
    registered.add_schedule("a", every=timedelta(hours=1), queue="d")
    assert Worker(registered).queues == ["a", "b", "c", "d"]


def test_queues_that_are_named_twice_are_taken_once(registered: Akadze) -> None:
    assert Worker(registered, queues=["x", "a", "x"]).queues == ["x", "a"]


async def test_an_app_without_tasks_is_refused_at_the_start(app: Akadze) -> None:
    with pytest.raises(AkadzeError, match="no tasks"):
        await Worker(app).serve(asyncio.Event())
