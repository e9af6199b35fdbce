"""Contract, section 1: a PgBouncer in transaction mode: each transaction may meet another session of the server."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

import akadze.sync
from akadze import (
    Akadze,
    AkadzeError,
    DuplicateJob,
    LimitSummary,
    current,
    dev,
    list_limits,
    list_workers,
    migrate,
    set_limit,
)
from akadze._async import schema
from akadze.cli.commands import app as commands
from tests.database import create_database, with_database
from tests.families import few
from tests.faults.pooler import PROGRAM, SESSIONS, pooled
from tests.servers import skip_without_programs
from tests.worker.serving import workers
from tests.worker.table import Table, enqueue, open_table

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")

DATABASE = "akadze_pooled_test"


@pytest.fixture(scope="module")
def pooler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of one server: met directly, and through the pooler."""
    skip_without_programs()
    with dev.start(tcp=True) as server, pooled(server.url(), tmp_path_factory.mktemp("pooler")) as url:
        yield server.url(), url


@pytest.fixture
def direct_url(pooler: tuple[str, str]) -> str:
    return create_database(pooler[0], DATABASE)


@pytest.fixture
def pooled_url(pooler: tuple[str, str], direct_url: str) -> str:
    """The URL of an empty database."""
    return with_database(pooler[1], DATABASE)


@pytest.fixture
async def table(anyio_backend: str, direct_url: str, pooled_url: str) -> AsyncIterator[Table]:
    await migrate(pooled_url)
    async with open_table(direct_url) as table:
        yield table


@pytest.fixture
async def app(pooled_url: str, table: Table) -> AsyncIterator[Akadze]:
    app = Akadze(database_url=pooled_url)
    yield app
    await app.aclose()


async def test_a_migration_that_builds_an_index_asks_for_the_server_itself(
    pooled_url: str, direct_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a lock of its session, which the pooler would give to somebody else."""
    folder = shutil.copytree(str(schema._STEPS), tmp_path / "steps")
    await migrate(pooled_url)
    (folder / "9001_index.sql").write_text(
        "drop index concurrently if exists akadze.mine;\ncreate index concurrently mine on akadze.jobs (task);\n"
    )
    monkeypatch.setattr(schema, "_STEPS", folder)
    with pytest.raises(AkadzeError, match="a pooler such as PgBouncer"):
        await migrate(pooled_url)
    assert "9001_index" not in await akadze.applied_versions(direct_url)
    await migrate(direct_url)
    assert (await akadze.applied_versions(direct_url))[-1] == "9001_index"
    await migrate(pooled_url)  # nothing is pending


async def test_the_calls_of_both_colours_work(app: Akadze, pooled_url: str) -> None:
    @app.task("task")
    async def task(n: int) -> None:
        pass

    await migrate(pooled_url)
    akadze.sync.migrate(pooled_url)
    assert akadze.sync.applied_versions(pooled_url) == await akadze.applied_versions(pooled_url) != []
    async with app.engine.begin() as connection:
        await set_limit(connection, "k", 2)
        await task.using(session=connection, unique_key="one").enqueue(n=2**60)
        with pytest.raises(DuplicateJob):
            await task.using(session=connection, unique_key="one").enqueue(n=1)
        await task.using(session=connection).enqueue_many({"n": n} for n in range(100))
    with app.sync_engine.begin() as connection_:
        task.using(session=connection_).enqueue(n=1)
    with psycopg.connect(pooled_url) as raw:
        task.using(session=raw).enqueue_many([{"n": 1}, {"n": 2}])
        akadze.sync.request_cancel(raw, 1)
    assert await list_limits(app.engine) == (LimitSummary("k", 2, None, None),)
    assert len(akadze.sync.list_jobs(app.sync_engine, limit=1000)) == 104


async def test_the_commands_work(app: Akadze, pooled_url: str) -> None:
    @app.task("task")
    def task() -> None:
        pass

    async with app.engine.begin() as connection:
        await task.using(session=connection).enqueue()
    for arguments, words in (
        (["jobs", "list"], "id=1 "),
        (["jobs", "show", "1"], "task=task"),
        (["jobs", "cancel", "1"], "state=queued"),
        (["queues", "pause", "default"], "paused=true"),
        (["queues", "resume", "default"], "paused=false"),
        (["limits", "set", "k", "--max-running", "3"], "max_running=3"),
        (["limits", "list"], "max_running=3"),
        (["workers", "list"], ""),
        (["metrics"], 'akadze_jobs{queue="default",state="queued"} 1'),
        (["migrate"], "new=false"),
    ):
        done = CliRunner().invoke(commands, [*arguments, "--database-url", pooled_url])
        assert (done.exit_code, done.stderr) == (0, ""), arguments
        assert words in done.stdout


@pytest.mark.parametrize("hooked", few([False, True], kept=[True]), ids=["", "with hooks"])
@pytest.mark.parametrize("fair", [False, True], ids=["by age", "fair"])
async def test_workers_run_each_job_once_within_its_limits_and_leave_nothing_behind_in_the_sessions(
    app: Akadze, pooled_url: str, table: Table, caplog: pytest.LogCaptureFixture, fair: bool, hooked: bool
) -> None:
    runs: Counter[str] = Counter()
    at_once = most = 0
    moves: list[str] = []

    @app.task("limited", max_attempts=2, backoff=lambda attempt: timedelta(0))
    async def limited(n: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.005)
        at_once -= 1
        runs[f"limited {n}"] += 1
        if n == 0 and current().job.run_count == 1:
            raise ValueError("the first time")
        return n

    @app.task("completing")
    async def completing(n: int) -> None:
        async with current().complete_tx() as connection:
            await limited.using(session=connection, limit_key="k").enqueue(n=n)

    @app.task("blocking")
    def blocking(n: int) -> None:
        with akadze.sync.current().complete_tx() as connection:
            connection.execute(text("select 1"))
        runs[f"blocking {n}"] += 1

    @app.periodic("tick", every=timedelta(seconds=1))
    async def tick() -> None:
        pass

    if hooked:

        async def on_transition(connection: Any, _job: object, _from_state: str, to_state: str) -> None:
            await connection.execute(text("select 1"))
            moves.append(to_state)

        app.hooks.on_transition.append(on_transition)
        # Blocking complete_tx takes no async hook.
        del app.tasks["blocking"]

    async with app.engine.begin() as connection:
        await set_limit(connection, "k", 2, max_starts=1000, window=timedelta(minutes=1))
        await limited.using(session=connection, limit_key="k").enqueue_many({"n": n} for n in range(20))
        await completing.using(session=connection).enqueue_many({"n": n} for n in range(20, 40))
        if not hooked:
            await blocking.using(session=connection).enqueue_many({"n": n} for n in range(20))
    async with workers(app, table) as serve:
        for _ in range(2):
            await serve(slots=4, fair=fair)
        await table.until("select count(*) = 40 from akadze.jobs where task = 'limited' and state = 'succeeded'")
        await table.until("select count(*) >= 2 from akadze.jobs where task = 'tick' and state = 'succeeded'")
        await table.until("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')")
        assert len(await list_workers(app.engine)) == 2
    assert await list_workers(app.engine) == ()

    assert runs == Counter(
        [f"limited {n}" for n in (0, *range(40))] + ([] if hooked else [f"blocking {n}" for n in range(20)])
    )
    assert most <= 2
    assert await table.value("select count(*) = count(distinct run_at) from akadze.jobs where task = 'tick'")
    if hooked:
        assert moves.count("succeeded") == await table.value(
            "select count(*) from akadze.jobs where state = 'succeeded'"
        )
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("notifications do not arrive" in each for each in said) == 2
    assert not [each for each in said if "out of reach" in each]
    await app.aclose()
    assert left_in_sessions(pooled_url) == [(0, [], 0, None)] * SESSIONS


async def test_a_worker_that_listens_past_the_pooler_is_woken_at_once(
    app: Akadze, direct_url: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    monkeypatch.setenv("AKADZE_LISTEN_URL", direct_url)
    async with workers(app, table) as serve:
        served = await serve(poll_interval=600)
        for _ in range(2):
            await table.until("select sleeping from akadze.workers where id = %s", served.id)
            await table.ended(await enqueue(task))


_LEFT = """
select (select count(*) from pg_prepared_statements), array(select pg_listening_channels()),
  (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
  -- but those that the pooler itself sets for each client
  (select array_agg(name) from pg_settings where source = 'session' and name not in
    ('application_name', 'client_encoding', 'DateStyle', 'IntervalStyle', 'TimeZone', 'standard_conforming_strings'))
"""


def left_in_sessions(url: str) -> list[Any]:
    """What there is in the sessions that the next clients of the pooler get."""
    with ExitStack() as stack:
        connections = [stack.enter_context(psycopg.connect(url)) for _ in range(SESSIONS)]
        # Each in an open transaction, so each on a session of its own.
        return [connection.execute(_LEFT).fetchone() for connection in connections]
