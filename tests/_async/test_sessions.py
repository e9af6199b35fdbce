"""Contract, section 2: every kind of session, in its own transaction, which akadze neither ends nor breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from akadze import (
    AkadzeError,
    DuplicateJob,
    EnqueueError,
    clear_limit,
    list_jobs,
    list_limits,
    list_paused_queues,
    list_workers,
    pause_queue,
    queue_snapshot,
    request_cancel,
    requeue,
    resume_queue,
    set_limit,
)
from akadze.metrics import render_metrics
from tests.families import few

from .callers import KINDS, Caller
from .conftest import Rows


class Undo(Exception):
    pass


# The others are of the same classes: they run with --full.
KEPT = [
    "sqlalchemy connection",
    "sqlalchemy connection that streams",
    "sqlalchemy session",
    "sqlalchemy scoped session",
    "psycopg",
    "psycopg with begin and commit",
    "psycopg with dict rows",
    "psycopg with raw cursors",
    "psycopg, repeatable read",
    "psycopg with odd settings",
    "psycopg in a pipeline",
    "psycopg with other JSON functions",
]


@pytest.fixture(params=few(KINDS, kept=KEPT))
async def caller(request: pytest.FixtureRequest, engine: Any, database_url: str, rows: Rows) -> AsyncIterator[Caller]:
    await rows("create table public.orders (name text)")
    await rows("create schema elsewhere")
    await rows("create table elsewhere.jobs (id text)")
    async with KINDS[request.param](engine, database_url) as caller:
        yield caller


@pytest.fixture
def note(app: Any) -> Any:
    @app.task("note", queue="notes", priority=3, max_attempts=5)
    def note(n: int, text: str = "") -> None: ...

    return note


async def order(caller: Caller, name: str) -> None:
    await caller.execute(f"insert into public.orders (name) values ('{name}')")


async def orders(rows: Rows) -> list[str]:
    return [row["name"] for row in await rows("select name from public.orders order by name")]


async def numbers(rows: Rows) -> list[Any]:
    return [row["n"] for row in await rows("select args -> 'n' as n from akadze.jobs order by id")]


async def test_a_job_is_part_of_the_callers_transaction(caller: Caller, note: Any, rows: Rows) -> None:
    await order(caller, "before")
    assert await note.using(session=caller.session).enqueue(n=7) is None
    await order(caller, "after")

    assert await numbers(rows) == []
    assert await caller.execute("select count(*) from akadze.jobs") == [(1,)]
    await caller.commit()

    assert await orders(rows) == ["after", "before"]
    assert await rows(
        "select task, queue, state, priority, max_attempts, args, meta, run_count, attempt, run_at <= now() as due"
        " from akadze.jobs"
    ) == [
        {
            "task": "note",
            "queue": "notes",
            "state": "queued",
            "priority": 3,
            "max_attempts": 5,
            "args": {"n": 7},
            "meta": {},
            "run_count": 0,
            "attempt": 0,
            "due": True,
        }
    ]


async def test_a_rolled_back_enqueue_leaves_no_job(caller: Caller, note: Any, rows: Rows) -> None:
    await note.using(session=caller.session).enqueue(n=1)
    await caller.rollback()
    await note.using(session=caller.session).enqueue(n=2)
    await order(caller, "a")
    await caller.commit()

    assert await numbers(rows) == [2]
    assert await orders(rows) == ["a"]


async def test_a_savepoint_takes_its_jobs_with_it(caller: Caller, note: Any, rows: Rows) -> None:
    await order(caller, "kept")
    with suppress(Undo):
        savepoint = caller.savepoint()
        async with savepoint:
            await note.using(session=caller.session).enqueue(n=1)
            raise Undo
    async with caller.savepoint():
        await note.using(session=caller.session).enqueue(n=2)
    await caller.commit()

    assert await numbers(rows) == [2]
    assert await orders(rows) == ["kept"]


async def test_a_duplicate_leaves_the_transaction_usable(caller: Caller, note: Any, rows: Rows) -> None:
    await note.using(session=caller.session, unique_key="o-1").enqueue(n=1)
    await caller.commit()

    await order(caller, "first")
    with pytest.raises(DuplicateJob):
        await note.using(session=caller.session, unique_key="o-1").enqueue(n=2)
    await order(caller, "second")
    await caller.commit()

    assert await numbers(rows) == [1]
    assert await orders(rows) == ["first", "second"]


async def test_a_duplicate_within_one_transaction_is_seen(caller: Caller, note: Any, rows: Rows) -> None:
    await note.using(session=caller.session, unique_key="o-1").enqueue(n=1)
    with pytest.raises(DuplicateJob):
        await note.using(session=caller.session, unique_key="o-1").enqueue(n=2)
    await caller.commit()

    assert await numbers(rows) == [1]


async def test_a_refused_enqueue_leaves_the_transaction_usable(caller: Caller, note: Any, rows: Rows) -> None:
    await order(caller, "first")
    for arguments in ({"n": "seven"}, {"n": 1, "text": "a\0"}, {"n": 1, "more": 2}, {}):
        with pytest.raises(EnqueueError):
            await note.using(session=caller.session).enqueue(**arguments)
    with pytest.raises(EnqueueError):
        note.using(session=caller.session, priority=10**9)
    await order(caller, "second")
    await caller.commit()

    assert await numbers(rows) == []
    assert await orders(rows) == ["first", "second"]


async def test_many_jobs_keep_their_order(caller: Caller, note: Any, rows: Rows) -> None:
    await note.using(session=caller.session, limit_key="k").enqueue_many({"n": n} for n in range(20))
    assert await numbers(rows) == []
    await caller.commit()
    await note.using(session=caller.session).enqueue_many([{"n": 99}])
    await caller.rollback()

    assert await numbers(rows) == list(range(20))


async def test_hooks_work_in_the_same_transaction(caller: Caller, note: Any, app: Any, rows: Rows) -> None:
    seen: list[Any] = []

    async def keep(connection: Any, job: Any) -> None:
        seen.append((job.args, job.state, job.queue, job.expires_at))
        assert (job.args["n"],) in await caller.execute("select cast(args ->> 'n' as integer) from akadze.jobs")
        assert connection is (caller.session() if callable(caller.session) else caller.session)
        await order(caller, f"job {job.args['n']}")

    app.hooks.on_enqueue.append(keep)
    await note.using(session=caller.session).enqueue(n=1)
    await caller.rollback()
    seen.clear()
    await note.using(session=caller.session).enqueue(n=2)
    await note.using(session=caller.session).enqueue_many([{"n": 3}, {"n": 4}])
    await caller.commit()

    assert seen == [({"n": n}, "queued", "notes", None) for n in (2, 3, 4)]
    assert await numbers(rows) == [2, 3, 4]
    assert await orders(rows) == ["job 2", "job 3", "job 4"]


async def test_a_hook_that_raises_takes_its_job_and_no_more(caller: Caller, note: Any, app: Any, rows: Rows) -> None:
    async def refuse(connection: Any, job: Any) -> None:
        await order(caller, "of the hook")
        await caller.execute("select 1 / 0")

    await order(caller, "first")
    app.hooks.on_enqueue.append(refuse)
    for attempt in (
        lambda: note.using(session=caller.session, unique_key="u").enqueue(n=1),
        lambda: note.using(session=caller.session).enqueue_many([{"n": 1}, {"n": 2}]),
    ):
        with pytest.raises((psycopg.errors.DivisionByZero, DBAPIError)):
            await attempt()
    await order(caller, "second")
    await caller.commit()

    assert await numbers(rows) == []
    assert await orders(rows) == ["first", "second"]


async def test_a_cancel_request_is_part_of_the_transaction(caller: Caller, note: Any, rows: Rows) -> None:
    await note.using(session=caller.session).enqueue(n=1)
    await caller.commit()
    [job] = await rows("select id from akadze.jobs")

    assert await request_cancel(caller.session, job["id"]) is None
    await caller.rollback()
    assert await rows("select from akadze.jobs where cancel_requested_at is not null") == []

    await request_cancel(caller.session, job["id"])
    with pytest.raises(AkadzeError):
        await request_cancel(caller.session, job["id"] + 1000)
    await caller.commit()
    assert await rows("select state from akadze.jobs where cancel_requested_at is not null") == [{"state": "queued"}]


async def test_a_requeue_is_part_of_the_transaction(caller: Caller, note: Any, rows: Rows) -> None:
    await note.using(session=caller.session, unique_key="u").enqueue(n=1)
    await caller.execute("update akadze.jobs set state = 'failed', attempt = 5, finished_at = now()")
    await caller.commit()
    [job] = await rows("select id from akadze.jobs")

    await requeue(caller.session, job["id"])
    await caller.rollback()
    assert await rows("select state from akadze.jobs") == [{"state": "failed"}]

    await requeue(caller.session, job["id"])
    with pytest.raises(AkadzeError):
        await requeue(caller.session, job["id"])
    await caller.commit()
    assert await rows("select state, attempt, max_attempts from akadze.jobs") == [
        {"state": "queued", "attempt": 5, "max_attempts": 6}
    ]


async def test_a_limit_is_part_of_the_transaction(caller: Caller, rows: Rows) -> None:
    await set_limit(caller.session, "vendor", 4)
    await caller.rollback()
    assert await rows("select from akadze.limits") == []

    await set_limit(caller.session, "vendor", 4)
    await caller.commit()
    assert await rows("select key, max_running, max_starts from akadze.limits") == [
        {"key": "vendor", "max_running": 4, "max_starts": None}
    ]

    await clear_limit(caller.session, "vendor")
    assert await rows("select key from akadze.limits") == [{"key": "vendor"}]
    await caller.commit()
    assert await rows("select key from akadze.limits") == []


async def test_a_pause_is_part_of_the_transaction(caller: Caller, rows: Rows) -> None:
    await pause_queue(caller.session, "mail")
    await caller.rollback()
    assert await rows("select from akadze.queue_pauses") == []

    await pause_queue(caller.session, "mail")
    await caller.commit()
    assert await rows("select queue from akadze.queue_pauses") == [{"queue": "mail"}]

    await resume_queue(caller.session, "mail")
    await caller.commit()
    assert await rows("select from akadze.queue_pauses") == []


async def test_what_takes_an_engine_takes_the_session_too(caller: Caller, note: Any, engine: Any, rows: Rows) -> None:
    await note.using(session=caller.session, meta={"tenant": "a"}).enqueue(n=1)
    await pause_queue(caller.session, "mail")
    await set_limit(caller.session, "k", 1)
    await caller.commit()
    await rows(
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
        " values (gen_random_uuid(), 'here', 1, '{default,mail}', '30 s')"
    )

    async def read(source: Any) -> list[Any]:
        return [
            await list_jobs(source, meta={"tenant": "a"}),
            await list_limits(source),
            await list_paused_queues(source),
            await list_workers(source),
            (await queue_snapshot(source)).counts,
            "akadze_jobs" in await render_metrics(source),
        ]

    by_session = await read(caller.session)
    assert by_session == await read(engine)
    assert [len(part) for part in by_session[:5]] == [1, 1, 1, 1, 1]
    await order(caller, "after")
    await caller.commit()
    assert await orders(rows) == ["after"]


async def test_the_session_is_left_as_it_was(caller: Caller, note: Any, app: Any, rows: Rows) -> None:
    async def settings() -> list[Any]:
        shown = await caller.execute(
            "select string_agg(name || '=' || setting, ', ' order by name) from pg_settings"
            " where name <> 'transaction_read_only'"
        )
        kept = ("row_factory", "cursor_factory", "server_cursor_factory", "autocommit", "prepare_threshold")
        sessions = await caller.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and backend_type = 'client backend'"
        )
        return [shown, sessions, *(getattr(caller.session, name, None) for name in kept)]

    before = await settings()
    inside: list[Any] = []

    async def look(connection: Any, job: Any) -> None:
        inside.append(await settings())

    app.hooks.on_enqueue.append(look)
    await note.using(session=caller.session, unique_key="u").enqueue(n=1)
    await note.using(session=caller.session).enqueue_many([{"n": 1}])
    await set_limit(caller.session, "k", 1)
    await list_jobs(caller.session)

    assert await settings() == before
    assert inside == [before, before]


async def test_a_broken_transaction_is_reported_at_once_and_not_tried_again(
    caller: Caller, note: Any, rows: Rows
) -> None:
    with pytest.raises((psycopg.Error, DBAPIError)):
        await caller.execute("select 1 / 0")
    refused = (psycopg.errors.InFailedSqlTransaction, psycopg.errors.PipelineAborted, DBAPIError)
    with pytest.raises(refused):
        await note.using(session=caller.session).enqueue(n=1)
    await caller.rollback()

    await note.using(session=caller.session).enqueue(n=2)
    await caller.commit()
    assert await numbers(rows) == [2]
