"""Exchanges of a worker in each of the ways in which they reach the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from enum import Enum
from typing import Any
from uuid import uuid4

import pytest

from akadze import Akadze
from akadze._worker.exchange import Exchange
from akadze.job import Job


class Way(Enum):
    """How exchanges reach the server."""

    DIRECT = "direct"
    #: As behind a pooler in transaction mode: nothing that a session was told lasts.
    POOLER = "pooler"
    #: With an on_transition hook, so through SQLAlchemy and with a savepoint for each job.
    HOOKS = "hooks"


#: Makes an exchange of a worker of its own: `make(queues=[...], fair=False)`.
MakeExchange = Callable[..., Any]


@pytest.fixture(params=list(Way), ids=lambda way: way.value)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
async def make_exchange(app: Akadze, way: Way, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeExchange]:
    """Make exchanges of an app whose only task is called work. They wait for limits as long as a test wants."""
    monkeypatch.setattr("akadze._worker.exchange._PATIENCE", 60)
    if "work" not in app.tasks:
        app.register(_work, name="work")
    if way is Way.HOOKS:
        app.hooks.on_transition.append(_watch)
    async with AsyncExitStack() as stack:

        async def make(*, queues: tuple[str, ...] = ("default",), fair: bool = False, look: bool = True) -> Exchange:
            exchange = Exchange(app, uuid4(), queues, fair=fair)
            stack.push_async_callback(exchange.give_up)
            held = await exchange.open()
            if way is Way.POOLER:
                held.direct = False
                held.raw.prepare_threshold = None
                await held.raw.execute("discard all", prepare=False)
                await held.raw.execute("set default_transaction_isolation to 'repeatable read'", prepare=False)
            if look:
                await exchange.survey()
            return exchange

        yield make


async def _work() -> None:
    """Never called: these tests claim jobs and write outcomes themselves."""


def _watch(connection: Any, job: Job, from_state: str, to_state: str) -> None:
    """Only its presence counts."""


def done(row: tuple[Any, ...], state: str = "succeeded", **fields: Any) -> tuple[int, int, str]:
    """The outcome of the run that a claim's row began."""
    job_id, run = row[0], row[6]
    return job_id, run, json.dumps({"id": job_id, "run": run, "state": state, **fields})


def ids(rows: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]
