"""The fixtures of this folder: an open transaction, and a look at what is committed."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from .conftest import Rows

PAUSE = "insert into akadze.queue_pauses (queue) values (cast(:queue as text))"


async def test_rows_sees_committed_rows_only(connection: AsyncConnection, rows: Rows) -> None:
    await connection.execute(text(PAUSE), {"queue": "mail"})
    assert connection.in_transaction()
    assert await rows("select queue from akadze.queue_pauses") == []
    await connection.commit()
    assert await rows("select queue from akadze.queue_pauses") == [{"queue": "mail"}]


async def test_rows_commits_at_once_and_returns_nothing_for_a_statement_without_rows(rows: Rows) -> None:
    assert await rows(PAUSE, queue="mail") == []
    assert await rows("select 1 as one from akadze.queue_pauses where queue = cast(:queue as text)", queue="mail") == [
        {"one": 1}
    ]


async def test_what_the_test_before_committed_is_gone(rows: Rows) -> None:
    assert await rows("select queue from akadze.queue_pauses") == []
