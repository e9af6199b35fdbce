"""Contract, section 3: a unique key is held while its job is queued or running, by one job."""

from __future__ import annotations

import random
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from sqlalchemy import text

from akadze import Akadze, AkadzeError, DuplicateJob, EnqueueError, Retry, request_cancel
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import ids, numbers, states

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note")
    def note(n: int) -> None: ...

    return note


async def test_the_second_enqueue_of_a_key_is_a_duplicate(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="o-1").enqueue(n=1)
    async with engine.begin() as connection:
        with pytest.raises(DuplicateJob) as raised:
            await note.using(session=connection, unique_key="o-1").enqueue(n=2)
        assert (await connection.execute(text("select 1"))).scalar() == 1
    assert isinstance(raised.value, EnqueueError)
    assert isinstance(raised.value, AkadzeError)
    assert "o-1" not in str(raised.value)
    assert await numbers(rows) == [1]


async def test_keys_are_shared_by_all_tasks_and_queues(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    @app.task("other", queue="elsewhere")
    def other() -> None: ...

    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=1)
        with pytest.raises(DuplicateJob):
            await other.using(session=connection, unique_key="u").enqueue()
    assert await numbers(rows) == [1]


@pytest.mark.parametrize(
    ("state", "held"),
    [("queued", True), ("running", True), ("succeeded", False), ("failed", False), ("cancelled", False)],
)
async def test_a_key_is_held_until_its_job_has_ended(
    state: str, held: bool, engine: Engine, note: Any, rows: Rows
) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=1)
    await rows("update akadze.jobs set state = :state", state=state)
    async with engine.begin() as connection:
        if held:
            with pytest.raises(DuplicateJob):
                await note.using(session=connection, unique_key="u").enqueue(n=2)
        else:
            await note.using(session=connection, unique_key="u").enqueue(n=2)
    assert await numbers(rows) == ([1] if held else [1, 2])


async def test_a_wait_for_a_retry_holds_the_key(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("again")
    def again() -> None:
        raise Retry(timedelta(hours=1))

    async with engine.begin() as connection:
        await again.using(session=connection, unique_key="u").enqueue()
    await drain(app)
    assert await rows("select state, attempt, run_at > now() as later from akadze.jobs") == [
        {"state": "queued", "attempt": 1, "later": True}
    ]
    async with engine.begin() as connection:
        with pytest.raises(DuplicateJob):
            await again.using(session=connection, unique_key="u").enqueue()
        await connection.execute(text("select 1"))


async def test_a_finished_run_frees_its_key(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    for n in (1, 2):
        async with engine.begin() as connection:
            await note.using(session=connection, unique_key="u").enqueue(n=n)
        await drain(app)
    assert await states(rows) == ["succeeded", "succeeded"]


QUEUED = pytest.mark.parametrize("attempt", [0, 1], ids=["before its first start", "while it waits for a retry"])
AWAIT_A_RETRY = "update akadze.jobs set attempt = 1, run_count = 1, run_at = now() + interval '1 hour'"


@QUEUED
async def test_an_expired_holder_gives_way(attempt: int, engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u", expires_at=PAST).enqueue(n=1)
    if attempt:
        await rows(AWAIT_A_RETRY)
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=2)
    assert await rows(
        "select state, expired, finished_at is not null as ended, run_count, attempt, errors"
        " from akadze.jobs order by id"
    ) == [
        {"state": "cancelled", "expired": True, "ended": True, "run_count": attempt, "attempt": attempt, "errors": []},
        {"state": "queued", "expired": False, "ended": False, "run_count": 0, "attempt": 0, "errors": []},
    ]


@QUEUED
async def test_a_holder_that_was_asked_to_cancel_gives_way(attempt: int, engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=1)
    if attempt:
        await rows(AWAIT_A_RETRY)
    [first] = await ids(rows)
    async with engine.begin() as connection:
        await request_cancel(connection, first)
        await note.using(session=connection, unique_key="u").enqueue(n=2)
    assert await rows("select state, expired, attempt, args -> 'n' as n from akadze.jobs order by id") == [
        {"state": "cancelled", "expired": False, "attempt": attempt, "n": 1},
        {"state": "queued", "expired": False, "attempt": 0, "n": 2},
    ]


async def test_a_dead_holder_stays_when_the_enqueue_is_rolled_back(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u", expires_at=PAST).enqueue(n=1)
    async with engine.connect() as connection:
        await connection.begin()
        await note.using(session=connection, unique_key="u").enqueue(n=2)
        await connection.rollback()
    assert await states(rows) == ["queued"]


async def test_a_running_holder_keeps_its_key_whatever_was_asked(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u", expires_at=PAST).enqueue(n=1)
    await rows("update akadze.jobs set state = 'running', cancel_requested_at = now()")
    async with engine.begin() as connection:
        with pytest.raises(DuplicateJob):
            await note.using(session=connection, unique_key="u").enqueue(n=2)
        await connection.execute(text("select 1"))
    assert await states(rows) == ["running"]


async def test_a_holder_that_expires_later_keeps_its_key(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        later = datetime.now(UTC) + timedelta(hours=1)
        await note.using(session=connection, unique_key="u", expires_at=later).enqueue(n=1)
        with pytest.raises(DuplicateJob):
            await note.using(session=connection, unique_key="u").enqueue(n=2)
    assert await states(rows) == ["queued"]


@pytest.mark.parametrize("dead", ["expired", "asked to cancel"])
async def test_the_dead_holder_s_end_is_a_transition_before_the_new_job_is_told_of(
    dead: str, engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    seen: list[Any] = []
    expired = dead == "expired"
    app.hooks.on_enqueue.append(lambda connection, job: seen.append((connection, "new", job.args["n"], job.state)))
    app.hooks.on_transition.append(
        lambda connection, job, before, after: seen.append((connection, before, after, job.args["n"], job.expired))
    )
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u", expires_at=PAST if expired else None).enqueue(n=1)
    if not expired:
        async with engine.begin() as connection:
            await request_cancel(connection, (await ids(rows))[0])
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=2)
        here = connection
    assert seen[1:] == [(here, "queued", "cancelled", 1, expired), (here, "new", 2, "queued")]


async def test_a_hook_that_refuses_the_end_of_the_holder_leaves_all_as_it_was(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    def refuse(connection: Any, job: Any, before: str, after: str) -> None:
        raise ZeroDivisionError

    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u", expires_at=PAST).enqueue(n=1)
    app.hooks.on_transition.append(refuse)
    async with engine.begin() as connection:
        with pytest.raises(ZeroDivisionError):
            await note.using(session=connection, unique_key="u").enqueue(n=2)
        await note.using(session=connection).enqueue(n=3)
    assert await rows("select args -> 'n' as n, state from akadze.jobs order by id") == [
        {"n": 1, "state": "queued"},
        {"n": 3, "state": "queued"},
    ]


def alike() -> list[str]:
    drawn = random.Random(118)
    stem = "".join(drawn.choices(string.ascii_letters, k=199))
    return [
        "a", "A", "a ", " a", "\uff41", "\u00e9", "e\u0301", "a'b", 'a"b', "a%", "a_", "0", "00", "null",
        "\\", "\t", "-0", *(stem + chr(0x100 + n) for n in range(1000)),
    ]  # fmt: skip


async def test_keys_that_look_alike_are_different_keys(engine: Engine, note: Any, rows: Rows) -> None:
    keys = alike()
    async with engine.begin() as connection:
        for n, key in enumerate(keys):
            await note.using(session=connection, unique_key=key).enqueue(n=n)
    assert [row["unique_key"] for row in await rows("select unique_key from akadze.jobs order by id")] == keys
    async with engine.begin() as connection:
        for key in keys[:30] + keys[30::10]:
            with pytest.raises(DuplicateJob):
                await note.using(session=connection, unique_key=key).enqueue(n=0)
    assert len(await ids(rows)) == len(keys)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_key_of_an_open_transaction_makes_the_other_wait(
    end: str, database_url: str, note: Any, rows: Rows
) -> None:
    async with (
        await AsyncConnection.connect(database_url) as first,
        await AsyncConnection.connect(database_url, options="-c lock_timeout=200ms") as second,
    ):
        await note.using(session=first, unique_key="u").enqueue(n=1)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await note.using(session=second, unique_key="u").enqueue(n=2)
        await second.rollback()
        if end == "commit":
            await first.commit()
            with pytest.raises(DuplicateJob):
                await note.using(session=second, unique_key="u").enqueue(n=2)
        else:
            await first.rollback()
            await note.using(session=second, unique_key="u").enqueue(n=2)
        await second.commit()
    assert await numbers(rows) == [1 if end == "commit" else 2]


async def test_a_duplicate_neither_shows_its_row_to_hooks_nor_ends_the_transaction(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    seen: list[int] = []
    app.hooks.on_enqueue.append(lambda connection, job: seen.append(job.args["n"]))
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=1)
        with pytest.raises(DuplicateJob):
            await note.using(session=connection, unique_key="u").enqueue(n=2)
        await note.using(session=connection).enqueue(n=3)
    assert seen == [1, 3]
    assert await numbers(rows) == [1, 3]
