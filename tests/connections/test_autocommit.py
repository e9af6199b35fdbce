"""Contract, sections 2 and 3: where the caller commits each statement by itself, akadze's calls are whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from akadze import Akadze, AkadzeError, DuplicateJob
from tests.connections.caller import Caller
from tests.connections.conftest import Rows, numbers, order, orders
from tests.connections.django_connection import DjangoCaller
from tests.connections.kinds import IN_AUTOCOMMIT


class Refused(Exception):
    pass


@pytest.fixture(params=IN_AUTOCOMMIT)
async def caller(request: pytest.FixtureRequest, database_url: str, rows: Rows) -> AsyncIterator[Caller]:
    async with IN_AUTOCOMMIT[request.param](database_url) as caller:
        yield caller


def refuse_second(connection: Any, job: Any) -> list[str]:
    """A hook that writes for each job, and takes no job but the first."""
    if job.args["n"] == 2:
        raise Refused
    return [f"insert into public.orders (name) values ('job {job.args['n']}')"]


def idle(rows: Rows) -> bool:
    return not rows(
        "select from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'"
    )


async def test_each_call_commits_by_itself(caller: Caller, note: Any, rows: Rows) -> None:
    calls = caller.calls
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=1))
    assert numbers(rows) == [1]
    with pytest.raises(DuplicateJob):
        await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=2))
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 3}, {"n": 4}]))
    assert numbers(rows) == [1, 3, 4]

    [first, *_] = rows("update akadze.jobs set state = 'failed', finished_at = now() returning id")
    await caller(lambda session: calls.requeue(session, first["id"]))
    await caller(lambda session: calls.request_cancel(session, first["id"]))
    assert rows("select args -> 'n' as n, state from akadze.jobs where cancel_requested_at is not null") == [
        {"n": 1, "state": "queued"}
    ]
    await caller(lambda session: calls.set_limit(session, "k", 1))
    await caller(lambda session: calls.pause_queue(session, "mail"))
    assert [row["key"] for row in rows("select key from akadze.limits")] == ["k"]
    assert [row["queue"] for row in rows("select queue from akadze.queue_pauses")] == ["mail"]
    assert idle(rows)


async def test_a_requeue_whose_key_is_taken_changes_nothing(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=1))
    [failed] = rows("update akadze.jobs set state = 'failed', finished_at = now() returning id")
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=2))

    with pytest.raises(AkadzeError, match="unique_key"):
        await caller(lambda session: caller.calls.requeue(session, failed["id"]))
    assert [row["state"] for row in rows("select state from akadze.jobs order by id")] == ["failed", "queued"]
    assert idle(rows)


async def test_a_job_and_what_its_hooks_write_are_one(caller: Caller, note: Any, app: Akadze, rows: Rows) -> None:
    app.hooks.on_enqueue.append(caller.hook(refuse_second))
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    assert (numbers(rows), orders(rows)) == ([1], ["job 1"])

    with pytest.raises(Refused):
        await caller(lambda session: note.using(session=session).enqueue(n=2))
    assert (numbers(rows), orders(rows)) == ([1], ["job 1"])

    with pytest.raises(Refused):
        await caller(lambda session: note.using(session=session).enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}]))
    assert (numbers(rows), orders(rows)) == ([1], ["job 1"])
    assert idle(rows)

    await order(caller, "after")
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 3}, {"n": 4}]))
    assert (numbers(rows), orders(rows)) == ([1, 3, 4], ["after", "job 1", "job 3", "job 4"])


async def test_a_transaction_that_was_begun_by_a_statement_is_the_callers(
    caller: Caller, note: Any, app: Akadze, rows: Rows
) -> None:
    if isinstance(caller, DjangoCaller):
        pytest.skip("Django itself opens no block in a transaction that it has not begun")
    app.hooks.on_enqueue.append(caller.hook(refuse_second))
    await caller.execute("begin")
    await order(caller, "first")
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    with pytest.raises(Refused):
        await caller(lambda session: note.using(session=session).enqueue(n=2))
    await order(caller, "last")
    assert (numbers(rows), orders(rows)) == ([], [])
    await caller.execute("commit")
    assert (numbers(rows), orders(rows)) == ([1], ["first", "job 1", "last"])

    await caller.execute("begin")
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 3}]))
    await caller.execute("rollback")
    assert numbers(rows) == [1]


async def test_jobs_are_drained_on_it(caller: Caller, note: Any, app: Akadze, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 1}, {"n": 2}]))
    await caller(lambda session: caller.calls.drain(app, session=session))

    assert [row["state"] for row in rows("select state from akadze.jobs")] == ["succeeded", "succeeded"]
    assert idle(rows)
