"""Contract, section 12: drain on the caller's own open transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from akadze import Akadze, AkadzeError, Snooze
from tests.connections.caller import Caller
from tests.connections.conftest import Rows, order, orders
from tests.connections.kinds import of_every_kind


async def test_jobs_of_an_open_transaction_run_and_vanish_with_its_rollback(
    caller: Caller, app: Akadze, rows: Rows
) -> None:
    ran: list[Any] = []

    @app.task("plain")
    def plain(n: int) -> int:
        ran.append(n)
        return n + 1

    @app.task("awaited")
    async def awaited(n: int) -> None:
        ran.append(n)

    @app.task("later", max_attempts=1)
    def later(n: int) -> None:
        raise Snooze(timedelta(hours=1))

    @app.task("bad", max_attempts=1)
    def bad(n: int) -> None:
        raise ValueError(n)

    await order(caller, "before")
    for number, task in enumerate((plain, awaited, later, bad)):
        await caller(lambda session, task=task, number=number: task.using(session=session).enqueue(n=number))
    assert await caller(lambda session: caller.calls.drain(app, session=session)) is None
    await order(caller, "after")

    assert ran == [0, 1]
    assert await caller.execute(
        "select task, state, cast(result as text), attempt, snoozes from akadze.jobs order by id"
    ) == [
        ("plain", "succeeded", "1", 0, 0),
        ("awaited", "succeeded", None, 0, 0),
        ("later", "queued", None, 0, 1),
        ("bad", "failed", None, 1, 0),
    ]
    assert rows("select from akadze.jobs") == []
    assert rows("select from akadze.workers") == []
    await caller.rollback()
    assert rows("select from akadze.jobs") == []
    assert orders(rows) == []


@of_every_kind
async def test_what_drain_has_done_commits_with_the_transaction(
    caller: Caller, note: Any, app: Akadze, rows: Rows
) -> None:
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller(lambda session: caller.calls.drain(app, session=session))
    await order(caller, "after")
    await caller.commit()

    assert rows("select state, run_count from akadze.jobs") == [{"state": "succeeded", "run_count": 1}]
    assert orders(rows) == ["after"]


async def test_complete_tx_works_on_the_session_that_drains(caller: Caller, app: Akadze, rows: Rows) -> None:
    first = True

    def look() -> list[str]:
        nonlocal first
        if first:
            first = False
            return ["insert into public.orders (name) values ('undone')", "select 1 / 0"]
        return ["insert into public.orders (name) values ('of the body')"]

    body = app.register(caller.body(look), name="body", backoff=lambda attempt: timedelta(0))
    await order(caller, "before")
    await caller(lambda session: body.using(session=session).enqueue())
    await caller(lambda session: caller.calls.drain(app, session=session))
    assert rows("select from akadze.jobs") == []
    await caller.commit()

    assert rows("select state, attempt, run_count from akadze.jobs") == [
        {"state": "succeeded", "attempt": 1, "run_count": 2}
    ]
    assert orders(rows) == ["before", "of the body"]


async def test_a_drain_that_is_refused_leaves_the_transaction_usable(caller: Caller, app: Akadze, rows: Rows) -> None:
    @app.task("known")
    def known() -> None: ...

    await caller.execute(
        "insert into akadze.jobs (task, queue, args, max_attempts, run_at) values ('other', 'q', '{}', 1, now())"
    )
    with pytest.raises(AkadzeError, match="other"):
        await caller(lambda session: caller.calls.drain(app, session=session))
    await order(caller, "after")
    await caller.commit()

    assert orders(rows) == ["after"]
