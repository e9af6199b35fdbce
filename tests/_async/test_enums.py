"""Contract, section 3: members of enums that are text or numbers count as their values, in every call."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum

import psycopg
import pytest

from akadze import (
    Akadze,
    DuplicateJob,
    clear_limit,
    list_jobs,
    list_limits,
    list_paused_queues,
    pause_queue,
    resume_queue,
    set_limit,
)
from akadze.testing import assert_enqueued, drain

from .conftest import Rows


class Name(StrEnum):
    """Its members' text is their value."""

    TASK = "mail.send"
    QUEUE = "mail"
    KEY = "tenant-1"
    STATE = "queued"


class State(str, Enum):  # noqa: UP042 - the older kind, whose members' text is their name
    QUEUED = "queued"
    KEY = "tenant-1"


class Number(IntEnum):
    HIGH = 9
    TRIES = 5


async def test_enum_members_are_their_values(app: Akadze, database_url: str, rows: Rows) -> None:
    @app.task(Name.TASK, queue=Name.QUEUE, priority=Number.HIGH, max_attempts=Number.TRIES)
    def send(to: Name, tries: Number) -> Name:
        assert (type(to), type(tries)) == (Name, Number)
        return to

    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        bound = send.using(
            session=connection, unique_key=Name.KEY, limit_key=Name.KEY, meta={Name.KEY: Name.KEY, "n": Number.HIGH}
        )
        await bound.enqueue(to=Name.KEY, tries=Number.TRIES)
        with pytest.raises(DuplicateJob):
            await send.using(session=connection, unique_key="tenant-1").enqueue(to=Name.KEY, tries=Number.TRIES)
        await connection.commit()
        assert await rows(
            "select task, queue, priority, max_attempts, unique_key, limit_key, meta, args from akadze.jobs"
        ) == [
            {
                "task": "mail.send",
                "queue": "mail",
                "priority": 9,
                "max_attempts": 5,
                "unique_key": "tenant-1",
                "limit_key": "tenant-1",
                "meta": {"tenant-1": "tenant-1", "n": 9},
                "args": {"to": "tenant-1", "tries": 5},
            }
        ]
        for state in (Name.STATE, State.QUEUED):
            found = await list_jobs(connection, queue=Name.QUEUE, state=state, meta={State.KEY: State.KEY})
            assert [job.task for job in found] == ["mail.send"]

        await pause_queue(connection, Name.QUEUE)
        assert await list_paused_queues(connection) == ("mail",)
        await resume_queue(connection, Name.QUEUE)
        assert await list_paused_queues(connection) == ()

        await set_limit(connection, Name.KEY, Number.HIGH)
        assert [(limit.key, limit.max_running) for limit in await list_limits(connection)] == [("tenant-1", 9)]
        await set_limit(connection, State.KEY, Number.TRIES)
        assert [(limit.key, limit.max_running) for limit in await list_limits(connection)] == [("tenant-1", 5)]
        await clear_limit(connection, State.KEY)
        assert await list_limits(connection) == ()
        await connection.commit()

    await assert_enqueued(app, Name.TASK, to="tenant-1", tries=5)
    await drain(app)
    assert await rows("select state, result from akadze.jobs") == [{"state": "succeeded", "result": "tenant-1"}]
