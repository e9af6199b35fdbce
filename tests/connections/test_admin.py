"""Contract, section 2: what changes jobs, queues and limits is part of the caller's transaction, too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from akadze import AkadzeError
from akadze import sync as akadze_sync
from tests.connections.caller import Caller
from tests.connections.conftest import Rows, order, orders


async def test_a_cancel_request_is_part_of_the_transaction(caller: Caller, note: Any, rows: Rows) -> None:
    request_cancel = caller.calls.request_cancel
    await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller.commit()
    [job] = rows("select id from akadze.jobs")

    assert await caller(lambda session: request_cancel(session, job["id"])) is None
    await caller.rollback()
    assert rows("select from akadze.jobs where cancel_requested_at is not null") == []

    await caller(lambda session: request_cancel(session, job["id"]))
    with pytest.raises(AkadzeError):
        await caller(lambda session: request_cancel(session, job["id"] + 1000))
    await order(caller, "after")
    assert rows("select from akadze.jobs where cancel_requested_at is not null") == []
    await caller.commit()
    assert rows("select state from akadze.jobs where cancel_requested_at is not null") == [{"state": "queued"}]
    assert orders(rows) == ["after"]


async def test_a_requeue_is_part_of_the_transaction(caller: Caller, note: Any, rows: Rows) -> None:
    requeue = caller.calls.requeue
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=1))
    await caller.execute("update akadze.jobs set state = 'failed', attempt = 5, finished_at = now()")
    await caller.commit()
    [job] = rows("select id from akadze.jobs")

    await caller(lambda session: requeue(session, job["id"]))
    await caller.rollback()
    assert rows("select state from akadze.jobs") == [{"state": "failed"}]

    await caller(lambda session: requeue(session, job["id"]))
    with pytest.raises(AkadzeError, match="queued"):
        await caller(lambda session: requeue(session, job["id"]))
    await order(caller, "after")
    await caller.commit()
    assert rows("select state, attempt, max_attempts from akadze.jobs") == [
        {"state": "queued", "attempt": 5, "max_attempts": 6}
    ]
    assert orders(rows) == ["after"]


async def test_a_requeue_whose_key_is_taken_leaves_the_transaction_usable(
    caller: Caller, note: Any, rows: Rows
) -> None:
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=1))
    await caller.execute("update akadze.jobs set state = 'failed', attempt = 5, finished_at = now()")
    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=2))
    await caller.commit()
    [failed] = rows("select id from akadze.jobs where state = 'failed'")

    with pytest.raises(AkadzeError, match="unique_key"):
        await caller(lambda session: caller.calls.requeue(session, failed["id"]))
    await order(caller, "after")
    await caller.commit()
    assert [row["state"] for row in rows("select state from akadze.jobs order by id")] == ["failed", "queued"]
    assert orders(rows) == ["after"]


async def test_a_limit_is_part_of_the_transaction(caller: Caller, rows: Rows) -> None:
    set_limit, clear_limit = caller.calls.set_limit, caller.calls.clear_limit
    window = timedelta(hours=1, seconds=0.5)

    await caller(lambda session: set_limit(session, "vendor", 4))
    await caller.rollback()
    assert rows("select from akadze.limits") == []

    await caller(lambda session: set_limit(session, "vendor", 4))
    await caller(lambda session: set_limit(session, "vendor", max_starts=10, window=window))
    await caller.commit()
    assert rows('select key, max_running, max_starts, "window" from akadze.limits') == [
        {"key": "vendor", "max_running": 4, "max_starts": 10, "window": window}
    ]

    await caller(lambda session: clear_limit(session, "vendor"))
    assert rows("select key from akadze.limits") == [{"key": "vendor"}]
    await caller.commit()
    assert rows("select key from akadze.limits") == []


async def test_a_pause_is_part_of_the_transaction(caller: Caller, rows: Rows) -> None:
    pause_queue, resume_queue = caller.calls.pause_queue, caller.calls.resume_queue

    await caller(lambda session: pause_queue(session, "mail"))
    await caller.rollback()
    assert rows("select from akadze.queue_pauses") == []

    await caller(lambda session: pause_queue(session, "mail"))
    await caller(lambda session: pause_queue(session, "mail"))
    await caller.commit()
    assert rows("select queue from akadze.queue_pauses") == [{"queue": "mail"}]

    await caller(lambda session: resume_queue(session, "mail"))
    await caller.commit()
    assert rows("select from akadze.queue_pauses") == []


async def test_a_session_reads_what_an_engine_reads(caller: Caller, note: Any, app: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session, meta={"tenant": "a"}).enqueue(n=1))
    await caller(lambda session: note.using(session=session, meta={"tenant": "b"}).enqueue(n=2))
    await caller(lambda session: caller.calls.pause_queue(session, "mail"))
    await caller(lambda session: caller.calls.set_limit(session, "k", 1, max_starts=5, window=timedelta(seconds=90)))
    await caller.commit()
    rows(
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
        " values (gen_random_uuid(), 'here', 1, '{default,mail}', '30 s')"
    )

    calls, engine = caller.calls, app.sync_engine
    by_session = [
        await caller(lambda session: calls.list_jobs(session, meta={"tenant": "a"}, state="queued", queue="notes")),
        await caller(lambda session: calls.list_limits(session)),
        await caller(lambda session: calls.list_paused_queues(session)),
        await caller(lambda session: calls.list_workers(session)),
        (await caller(lambda session: calls.queue_snapshot(session))).counts,
    ]
    assert by_session == [
        akadze_sync.list_jobs(engine, meta={"tenant": "a"}),
        akadze_sync.list_limits(engine),
        akadze_sync.list_paused_queues(engine),
        akadze_sync.list_workers(engine),
        akadze_sync.queue_snapshot(engine).counts,
    ]
    assert [len(part) for part in by_session] == [1, 1, 1, 1, 1]
    metrics = await caller(lambda session: calls.render_metrics(session))
    assert 'akadze_jobs{queue="notes",state="queued"} 2' in metrics
    assert 'akadze_queue_paused{queue="mail"} 1' in metrics


async def test_a_session_reads_its_own_changes(caller: Caller, note: Any, rows: Rows) -> None:
    await caller(lambda session: note.using(session=session).enqueue(n=1))

    assert [job.task for job in await caller(lambda session: caller.calls.list_jobs(session))] == ["note"]
    await order(caller, "after")
    await caller.rollback()
    assert await caller(lambda session: caller.calls.list_jobs(session)) == ()
    assert orders(rows) == []
