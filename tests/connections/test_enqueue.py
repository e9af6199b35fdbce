"""Contract, sections 2 and 3: enqueue on every kind of session, in the caller's own transaction."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from akadze import Akadze, AkadzeError, DuplicateJob, EnqueueError
from tests.connections.caller import Caller
from tests.connections.conftest import Rows, numbers, order, orders
from tests.connections.kinds import of_every_kind


class Undo(Exception):
    pass


@of_every_kind
async def test_a_job_is_there_when_the_transaction_commits(caller: Caller, app: Akadze, rows: Rows) -> None:
    @app.task("send")
    def send(to: UUID, at: datetime, text: str) -> None: ...

    to = UUID("00112233-4455-6677-8899-aabbccddeeff")
    at = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    await order(caller, "before")
    result = await caller(
        lambda session: send.using(
            session=session,
            run_at=at,
            expires_at=at + timedelta(days=1),
            priority=-2,
            max_attempts=9,
            unique_key="u'1",
            limit_key="50% %(x)s :x",
            meta={"tenant": "ü", "n": [1, None]},
        ).enqueue(to=to, at=at, text="100% of %s, :name, 'it''s', \\ and 中")
    )
    await order(caller, "after")

    assert result is None
    assert rows("select from akadze.jobs") == []
    assert await caller.execute("select count(*) from akadze.jobs") == [(1,)]
    await caller.commit()

    assert orders(rows) == ["after", "before"]
    [row] = rows("select * from akadze.jobs")
    assert {name: row[name] for name in ("args", "meta", "priority", "max_attempts", "unique_key", "limit_key")} == {
        "args": {"to": str(to), "at": "2026-05-01T12:30:00Z", "text": "100% of %s, :name, 'it''s', \\ and 中"},
        "meta": {"tenant": "ü", "n": [1, None]},
        "priority": -2,
        "max_attempts": 9,
        "unique_key": "u'1",
        "limit_key": "50% %(x)s :x",
    }
    assert (row["run_at"], row["expires_at"]) == (at, at + timedelta(days=1))


async def test_a_delay_counts_from_the_transaction(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session, delay=timedelta(minutes=2, microseconds=5)).enqueue(n=1))
    await caller.commit()

    assert rows("select run_at - created_at as delay from akadze.jobs") == [
        {"delay": timedelta(minutes=2, microseconds=5)}
    ]


async def test_where_the_tables_are_missing_the_error_says_what_to_run(caller: Caller, note: Any) -> None:
    for enqueue in (
        lambda session: note.using(session=session).enqueue(n=1),
        lambda session: note.using(session=session).enqueue_many([{"n": 1}]),
    ):
        await caller.execute("drop table akadze.jobs")
        with pytest.raises(Exception, match=r"akadze\.jobs") as raised:
            await caller(enqueue)
        assert not isinstance(raised.value, AkadzeError)
        assert ["run `akadze migrate`" in said for said in raised.value.__notes__] == [True]
        await caller.rollback()


@of_every_kind
async def test_a_rolled_back_enqueue_leaves_no_job(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 2}]))
    await caller.rollback()
    await caller(lambda session: note.using(session=session).enqueue(n=3))
    await order(caller, "a")
    await caller.commit()

    assert numbers(rows) == [3]
    assert orders(rows) == ["a"]


async def test_a_savepoint_takes_its_jobs_with_it(caller: Caller, note: Any, rows: Rows) -> None:
    await order(caller, "kept")
    with suppress(Undo):
        async with caller.savepoint():
            await caller(lambda session: note.using(session=session).enqueue(n=1))
            raise Undo
    async with caller.savepoint():
        await caller(lambda session: note.using(session=session).enqueue(n=2))
    await caller.commit()

    assert numbers(rows) == [2]
    assert orders(rows) == ["kept"]


@of_every_kind
async def test_a_duplicate_leaves_the_transaction_usable(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session, unique_key="o-1").enqueue(n=1))
    await caller.commit()

    await caller(lambda session: note.using(session=session, unique_key="o-2").enqueue(n=2))
    for key in ("o-1", "o-2"):
        await order(caller, f"before {key}")
        with pytest.raises(DuplicateJob):
            await caller(lambda session, key=key: note.using(session=session, unique_key=key).enqueue(n=3))
    await order(caller, "last")
    await caller.commit()

    assert numbers(rows) == [1, 2]
    assert orders(rows) == ["before o-1", "before o-2", "last"]


async def test_a_refused_enqueue_leaves_the_transaction_usable(caller: Caller, note: Any, rows: Rows) -> None:
    await order(caller, "first")
    for arguments in ({"n": "seven"}, {"n": 1, "text": "a\0"}, {"n": 1, "more": 2}, {}):
        with pytest.raises(EnqueueError):
            await caller(lambda session, arguments=arguments: note.using(session=session).enqueue(**arguments))
    with pytest.raises(EnqueueError):
        await caller(lambda session: note.using(session=session, priority=10**9).enqueue(n=1))
    await order(caller, "second")
    await caller.commit()

    assert numbers(rows) == []
    assert orders(rows) == ["first", "second"]


async def test_many_jobs_are_inserted_in_their_order_or_not_at_all(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session, limit_key="k").enqueue_many({"n": n} for n in range(20)))
    with pytest.raises(EnqueueError, match="item 1"):
        await caller(lambda session: note.using(session=session).enqueue_many([{"n": 98}, {"n": "x"}, {"n": 99}]))
    assert numbers(rows) == []
    await caller.commit()

    assert numbers(rows) == list(range(20))


async def test_hooks_work_in_the_same_transaction(caller: Caller, note: Any, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []

    def look(connection: Any, job: Any) -> list[str]:
        assert connection is caller.given
        seen.append((job.id, job.args, job.state, job.queue, job.meta))
        return [f"insert into public.orders (name) select 'job ' || id from akadze.jobs where id = {job.id}"]

    app.hooks.on_enqueue.append(caller.hook(look))
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller.rollback()
    seen.clear()
    await caller(lambda session: note.using(session=session).enqueue(n=2))
    await caller(lambda session: note.using(session=session, meta={"a": 1}).enqueue_many([{"n": 3}, {"n": 4}]))
    assert orders(rows) == []
    await caller.commit()

    ids = [row["id"] for row in rows("select id from akadze.jobs order by id")]
    assert numbers(rows) == [2, 3, 4]
    assert seen == [
        (ids[0], {"n": 2}, "queued", "notes", {}),
        (ids[1], {"n": 3}, "queued", "notes", {"a": 1}),
        (ids[2], {"n": 4}, "queued", "notes", {"a": 1}),
    ]
    assert orders(rows) == [f"job {job_id}" for job_id in ids]


@pytest.mark.parametrize("refusal", ["select 1 / 0", None], ids=["by the database", "by the hook"])
async def test_a_hook_that_raises_takes_its_job_and_no_more(
    caller: Caller, note: Any, app: Akadze, rows: Rows, refusal: str | None
) -> None:
    def look(connection: Any, job: Any) -> list[str]:
        if job.args["n"] == 1:
            return ["insert into public.orders (name) values ('of the hook')"]
        if refusal is None:
            raise Undo("no")
        return ["insert into public.orders (name) values ('of the hook')", refusal]

    expected = "no" if refusal is None else "division by zero"
    await order(caller, "first")
    app.hooks.on_enqueue.append(caller.hook(look))
    with pytest.raises(Exception, match=expected):
        await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=2))
    await order(caller, "second")
    with pytest.raises(Exception, match=expected):
        await caller(lambda session: note.using(session=session).enqueue_many([{"n": 1}, {"n": 2}]))
    await order(caller, "third")
    await caller.commit()

    assert numbers(rows) == []
    assert orders(rows) == ["first", "second", "third"]


async def test_a_hook_that_raises_first_of_all_leaves_the_session_usable(
    caller: Caller, note: Any, app: Akadze, rows: Rows
) -> None:
    def refuse(connection: Any, job: Any) -> list[str]:
        raise Undo("no")

    app.hooks.on_enqueue.append(caller.hook(refuse))
    with pytest.raises(Undo):
        await caller(lambda session: note.using(session=session).enqueue(n=1))
    app.hooks.on_enqueue.clear()
    await caller(lambda session: note.using(session=session).enqueue(n=2))
    assert numbers(rows) == []
    await caller.commit()

    assert numbers(rows) == [2]


async def test_a_key_of_an_expired_job_is_taken_and_its_end_is_told(
    caller: Caller, note: Any, app: Akadze, rows: Rows
) -> None:
    told: list[Any] = []

    def transition(connection: Any, job: Any) -> list[str]:
        assert connection is caller.given
        told.append(job.args)
        return []

    app.hooks.on_transition.append(caller.hook(transition))
    past = datetime(2026, 1, 1, tzinfo=UTC)
    await caller(lambda session: note.using(session=session, unique_key="u", expires_at=past).enqueue(n=1))
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=2))
    await caller.commit()

    assert told == [{"n": 1}]
    assert rows("select args -> 'n' as n, state, expired from akadze.jobs order by id") == [
        {"n": 1, "state": "cancelled", "expired": True},
        {"n": 2, "state": "queued", "expired": False},
    ]
