"""Contract, section 2: the caller's session keeps its settings, its transaction, and is the only connection."""

from __future__ import annotations

from typing import Any

import pytest

from akadze import Akadze, DuplicateJob
from tests.connections.caller import Caller
from tests.connections.conftest import Rows, numbers, order, orders
from tests.connections.kinds import of_every_kind

#: The second line tells the transaction: its process, its start, its number. The third tells of further connections.
_STATE = """
select string_agg(name || '=' || setting, ', ' order by name),
  pg_backend_pid(), cast(now() as text), cast(pg_current_xact_id() as text),
  (select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'client backend')
from pg_settings
"""


@of_every_kind
async def test_the_session_and_its_transaction_are_left_as_they_were(
    caller: Caller, note: Any, app: Akadze, rows: Rows
) -> None:
    await order(caller, "first")
    before = (await caller.execute(_STATE), caller.attributes())
    app.hooks.on_enqueue.append(caller.hook(lambda connection, job: ["select 1"]))
    calls = caller.calls

    await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=1))
    await caller(lambda session: note.using(session=session).enqueue_many([{"n": 2}]))
    with pytest.raises(DuplicateJob):
        await caller(lambda session: note.using(session=session, unique_key="u").enqueue(n=3))
    for do in (
        lambda session: calls.set_limit(session, "k", 1),
        lambda session: calls.clear_limit(session, "k"),
        lambda session: calls.pause_queue(session, "mail"),
        lambda session: calls.resume_queue(session, "mail"),
        lambda session: calls.list_jobs(session),
        lambda session: calls.queue_snapshot(session),
        lambda session: calls.render_metrics(session),
        lambda session: calls.drain(app, session=session),
    ):
        await caller(do)

    assert (await caller.execute(_STATE), caller.attributes()) == before
    await caller.rollback()
    assert numbers(rows) == []
    assert orders(rows) == []


async def test_a_broken_transaction_is_reported_and_not_mended(caller: Caller, note: Any, rows: Rows) -> None:
    await order(caller, "lost")
    with pytest.raises(Exception, match="division by zero"):
        await caller.execute("select 1 / 0")
    with pytest.raises(Exception, match="transaction is aborted"):
        await caller(lambda session: note.using(session=session).enqueue(n=1))
    await caller.rollback()

    await caller(lambda session: note.using(session=session).enqueue(n=2))
    await caller.commit()
    assert numbers(rows) == [2]
    assert orders(rows) == []
