"""Contract, section 3: enqueue_many of many jobs on psycopg's own connection, which copies them, is the same call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from akadze import Akadze, EnqueueError
from akadze._async import bound

from .conftest import Engine, Rows

E = datetime(2040, 1, 1, tzinfo=UTC)
#: Enough to be copied.
MANY = 500
ODD = ["plain", "tab\tnew\nline\r", "back\\slash \\N \\. \\x41", "\\.", "ünï ☃ 𝄞", '"quoted"', "", "\\\\"]


@pytest.fixture
def texts(app: Akadze) -> Any:
    @app.task("te\txt\\s", queue="no\\tes", priority=3, max_attempts=5)
    def texts(text: str) -> None: ...

    return texts


def items() -> list[dict[str, str]]:
    return [{"text": ODD[number % len(ODD)] + str(number)} for number in range(MANY)]


async def test_copied_jobs_are_those_of_the_statement(
    app: Akadze, texts: Any, engine: Engine, database_url: str, rows: Rows
) -> None:
    options: dict[str, Any] = {"expires_at": E, "limit_key": "k\t\\N", "meta": {"a\\": "b\n"}, "max_attempts": 7}
    async with engine.begin() as connection:
        await texts.using(session=connection, **options).enqueue_many(items())
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await texts.using(session=connection, **options).enqueue_many(items())
        await texts.using(session=connection).enqueue_many(items())

    columns = "task, queue, priority, max_attempts, expires_at, limit_key, meta, args, state, errors, run_count"
    found = await rows(f"select {columns}, run_at = created_at as due from akadze.jobs order by id")
    assert found[:MANY] == found[MANY : 2 * MANY]
    assert [row["args"] for row in found[2 * MANY :]] == items()
    plain = {**found[0], "expires_at": None, "limit_key": None, "meta": {}, "max_attempts": 5}
    assert found[2 * MANY] == plain
    assert all(row["due"] for row in found)


async def test_copied_jobs_are_part_of_the_transaction(texts: Any, database_url: str, rows: Rows) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await texts.using(session=connection).enqueue_many(items())
        await connection.rollback()
        with pytest.raises(EnqueueError):
            await texts.using(session=connection).enqueue_many([*items(), {"text": 1}])
        await texts.using(session=connection).enqueue_many(items())
        assert await rows("select id from akadze.jobs") == []
    assert len(await rows("select id from akadze.jobs")) == MANY


async def test_what_cannot_be_sent_in_the_connections_encoding_leaves_the_transaction_usable(
    texts: Any, database_url: str, rows: Rows
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, client_encoding="latin1") as connection:
        await connection.execute("create table public.orders (name text)")
        with pytest.raises(UnicodeEncodeError):
            await texts.using(session=connection).enqueue_many(items())
        await connection.execute("insert into public.orders values ('kept')")
        await texts.using(session=connection).enqueue_many([{"text": "é"}] * MANY)
    assert await rows("select name from public.orders") == [{"name": "kept"}]
    assert await rows("select distinct args from akadze.jobs") == [{"args": {"text": "é"}}]


@pytest.mark.parametrize("autocommit", [True, False])
async def test_in_a_pipeline_they_are_enqueued_by_the_statement(
    autocommit: bool, texts: Any, database_url: str, rows: Rows
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(database_url, autocommit=autocommit) as connection,
        connection.pipeline(),
    ):
        await texts.using(session=connection).enqueue_many(items())
    assert len(await rows("select id from akadze.jobs")) == MANY


async def test_hooks_see_every_job(app: Akadze, texts: Any, database_url: str) -> None:
    seen: list[Any] = []
    app.hooks.on_enqueue.append(lambda connection, job: seen.append(job.args))
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await texts.using(session=connection).enqueue_many(items())
    assert seen == items()


@pytest.mark.parametrize("options", [{"delay": timedelta(hours=1)}, {"run_at": E}])
async def test_jobs_for_later_are_not_due(options: Any, texts: Any, database_url: str, rows: Rows) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await texts.using(session=connection, **options).enqueue_many(items())
    assert await rows("select id from akadze.jobs where run_at <= now()") == []


async def test_a_sleeping_worker_is_woken_once(texts: Any, database_url: str, rows: Rows) -> None:
    await rows(
        "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl, sleeping)"
        " values (gen_random_uuid(), 'h', 1, array['no\\tes'], '1 minute', true)"
    )
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("listen akadze")
        await texts.using(session=connection).enqueue_many(items())
        heard = [notification.payload async for notification in connection.notifies(timeout=5, stop_after=1)]
    assert heard == ["no\\tes"]


def test_this_is_enough_to_be_copied() -> None:
    assert bound._MANY <= MANY
