"""Contract, section 13: whatever a role or a database defaults to, a worker does all of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

import akadze.sync
from akadze import Akadze, current, list_jobs, list_limits, set_limit
from tests.families import few
from tests.servers import set_for_new_sessions
from tests.worker.serving import workers
from tests.worker.table import enqueue, open_table

SETTINGS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "TimeZone": "America/St_Johns",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "search_path": "",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
}
#: Of three scripts: LATIN1 has only the first.
WORDS = "é € 漢"


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest, database_url: str) -> Iterator[str]:
    """A setting to which new sessions of this database default."""
    with psycopg.connect(database_url, autocommit=True, application_name="test") as connection:
        set_for_new_sessions(connection, request.param, SETTINGS[request.param])
        yield request.param
        connection.execute(sql.SQL("alter database {} reset all").format(sql.Identifier(connection.info.dbname)))


@pytest.mark.parametrize("hooked", few([False, True], kept=[False]), ids=["", "with hooks"])
async def test_a_worker_does_all_of_its_work(setting: str, database_url: str, hooked: bool) -> None:
    app = Akadze(database_url=database_url)
    moves: list[Any] = []

    @app.task("task", max_attempts=3, backoff=lambda attempt: timedelta(0))
    async def task(words: str) -> str:
        if current().job.run_count == 1:
            raise ValueError(words)
        return words

    @app.task("completing", max_attempts=20, backoff=lambda attempt: timedelta(0))
    def completing(words: str) -> None:
        with akadze.sync.current().complete_tx() as connection:
            task.using(session=connection, meta={"of": words}).enqueue(words=words)

    @app.periodic("tick", every=timedelta(seconds=1))
    async def tick() -> None:
        pass

    if hooked:
        app.hooks.on_transition.append(lambda connection, job, before, after: moves.append(job.args))

    async with app.engine.begin() as connection:
        shown = await connection.scalar(text("select current_setting(:name)"), {"name": setting})
        await set_limit(connection, WORDS, 2, max_starts=100, window=timedelta(days=1))
    if setting != "client_encoding":
        assert str(shown).strip('"') == SETTINGS[setting]
    async with open_table(f"{database_url}{'&' if '?' in database_url else '?'}client_encoding=utf8") as table:
        await table.rows("set datestyle to iso")
        jobs = [await enqueue(task, {"words": WORDS}, limit_key=WORDS, unique_key=f"{WORDS} {n}") for n in range(5)]
        jobs.append(await enqueue(completing, {"words": WORDS}))
        lost = await enqueue(task, {"words": WORDS})
        await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), lost)
        async with workers(app, table) as serve:
            await serve(slots=3)
            assert (await table.ended(*jobs, lost))["result"] == WORDS
            await table.until("select count(*) = 1 from akadze.jobs where meta <> '{}' and state = 'succeeded'")
            await table.until("select count(*) > 0 from akadze.jobs where task = 'tick' and state = 'succeeded'")
        row = await table.job(jobs[0])
        assert row["errors"][0]["message"] == WORDS
    assert {job.state for job in await list_jobs(app.engine, meta={"of": WORDS})} == {"succeeded"}
    for [limit] in (akadze.sync.list_limits(app.sync_engine), await list_limits(app.engine)):
        assert (limit.key, limit.window) == (WORDS, timedelta(days=1))
    assert ({"words": WORDS} in moves) == hooked
    await app.aclose()


@pytest.mark.usefixtures("short_transactions")
@pytest.mark.parametrize(
    "short_transactions",
    [("idle_in_transaction_session_timeout", "150ms"), ("transaction_timeout", "150ms")],
    ids=lambda given: given[0],
    indirect=True,
)
@pytest.mark.parametrize("asks", [False, True], ids=["", "asking afterwards"])
async def test_a_session_that_the_server_ends_for_a_slow_hook_stops_no_worker(database_url: str, asks: bool) -> None:
    app = Akadze(database_url=database_url)
    called = 0

    @app.task("task")
    async def task() -> None: ...

    async def slow_now_and_then(connection: Any, _job: Any, _before: str, _after: str) -> None:
        nonlocal called
        called += 1
        if called in (1, 4):
            await asyncio.sleep(0.5)
            if asks:
                await connection.execute(text("select 1"))

    app.hooks.on_transition.append(slow_now_and_then)
    async with open_table(database_url) as table:
        jobs = [await enqueue(task) for _ in range(3)]
        async with workers(app, table) as serve:
            await serve(slots=2)
            assert (await table.ended(*jobs))["state"] == "succeeded"
        assert [(await table.job(job))["attempt"] for job in jobs] == [0, 0, 0]
    assert called > 4
    await app.aclose()
