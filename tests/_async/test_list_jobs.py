"""Contract, section 15: list_jobs: its order, its filters, its bounds, and what it does not show."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg_pool
import pytest
from psycopg import AsyncConnection
from psycopg.rows import scalar_row
from sqlalchemy.ext.asyncio import AsyncSession

from akadze import Akadze, AkadzeError, JobSummary, list_jobs
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import ids

E = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note", queue="notes", priority=3, max_attempts=5)
    def note(n: int = 0) -> str:
        return "secret result"

    return note


async def listed(source: Any, **filters: Any) -> list[int]:
    return [job.id for job in await list_jobs(source, **filters)]


async def test_a_summary_says_what_a_job_is_and_not_what_is_in_it(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection, run_at=E, meta={"tenant": "a"}).enqueue(n=77)
    [job] = await list_jobs(engine)
    [job_id] = await ids(rows)
    assert job == JobSummary(
        id=job_id,
        task="note",
        queue="notes",
        state="queued",
        priority=3,
        attempt=0,
        max_attempts=5,
        run_at=E,
        started_at=None,
        finished_at=None,
        meta={"tenant": "a"},
    )
    assert {field.name for field in dataclasses.fields(JobSummary)}.isdisjoint({"args", "result", "errors"})
    assert "77" not in repr(job)
    hash(job)
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.state = "running"  # type: ignore[misc]  # refused on purpose
    with pytest.raises(TypeError):
        job.meta["tenant"] = "b"  # type: ignore[index]  # refused on purpose


async def test_instants_are_aware_and_those_of_the_database(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue()
    await drain(app)
    [job] = await list_jobs(engine)
    [row] = await rows("select run_at, started_at, finished_at from akadze.jobs")
    assert (job.run_at, job.started_at, job.finished_at) == (row["run_at"], row["started_at"], row["finished_at"])
    assert all(value.utcoffset() == timedelta(0) for value in (job.run_at, job.started_at, job.finished_at) if value)
    assert job.state == "succeeded"


async def test_the_order_is_priority_then_run_at_then_id(engine: Engine, note: Any, rows: Rows) -> None:
    made = [(0, 2), (5, 2), (0, 1), (5, 1), (-3, 0), (5, 1), (0, 2)]
    async with engine.begin() as connection:
        for priority, day in made:
            await note.using(session=connection, priority=priority, run_at=E + timedelta(days=day)).enqueue()
    all_ids = await ids(rows)
    order = sorted(range(len(made)), key=lambda n: (-made[n][0], made[n][1], n))
    assert await listed(engine) == [all_ids[n] for n in order]
    assert await listed(engine, limit=3) == [all_ids[n] for n in order[:3]]


async def test_filters_by_queue_and_state_are_exact(engine: Engine, app: Akadze, rows: Rows) -> None:
    for queue in ("a_b", "axb", "a%", "A_B"):
        task = app.register(lambda: None, name=queue, queue=queue)
        async with engine.begin() as connection:
            await task.using(session=connection).enqueue()
    first, _, third, _ = await ids(rows)
    await rows("update akadze.jobs set state = 'failed' where id = :id", id=third)
    assert await listed(engine, queue="a_b") == [first]
    assert await listed(engine, queue="a%") == [third]
    assert await listed(engine, queue="a") == []
    assert await listed(engine, queue="nowhere") == []
    assert await listed(engine, state="failed") == [third]
    assert await listed(engine, state="queued", queue="a%") == []
    assert await listed(engine, state="failed", queue="a%") == [third]
    assert await listed(engine, state="running") == []


METAS: list[dict[str, Any]] = [
    {"t": "x_1"}, {"t": "xy1"}, {"t": 1}, {"t": "1"}, {"t": None}, {"n": {"k": 1}}, {}, {"t": 1.0, "u": 2},
    {"t": True}, {"n": {"k": 1, "l": 2}}, {"l": [1, 2]}, {"l": [2, 1]}, {"l": [1]}, {"t": ""}, {"": 1},
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"t": "x_1"}, [0]),
        ({"t": "x%"}, []),
        ({"t": 1}, [2, 7]),
        ({"t": "1"}, [3]),
        ({"t": None}, [4]),
        ({"n": {"k": 1}}, [5]),
        ({"n": {}}, []),
        ({}, list(range(len(METAS)))),
        (None, list(range(len(METAS)))),
        ({"t": 1, "u": 2}, [7]),
        ({"u": 2}, [7]),
        ({"t": True}, [8]),
        ({"l": [1, 2]}, [10]),
        ({"l": [1]}, [12]),
        ({"l": 1}, []),
        ({"t": ""}, [13]),
        ({"": 1}, [14]),
        ({"no": None}, []),
    ],
    ids=str,
)
async def test_meta_keeps_jobs_that_have_every_given_pair_exactly(
    wanted: Any, found: list[int], engine: Engine, note: Any, rows: Rows
) -> None:
    async with engine.begin() as connection:
        for meta in METAS:
            await note.using(session=connection, meta=meta).enqueue()
    all_ids = await ids(rows)
    assert await listed(engine, meta=wanted) == [all_ids[n] for n in found]


async def test_meta_comes_back_as_it_was_given(engine: Engine, note: Any) -> None:
    meta = {"big": 2**70, "float": 0.1, "deep": [{"a": None}], "text": "%s :x '\\u0000 é", "": ""}
    async with engine.begin() as connection:
        await note.using(session=connection, meta=meta).enqueue()
    assert [dict(job.meta) for job in await list_jobs(engine, meta=meta)] == [meta]


async def test_fifty_jobs_are_listed_unless_another_number_is_given(engine: Engine, note: Any, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many([{}] * 1001)
    all_ids = await ids(rows)
    assert await listed(engine) == all_ids[:50]
    assert await listed(engine, limit=1) == all_ids[:1]
    assert await listed(engine, limit=1000) == all_ids[:1000]


@pytest.mark.parametrize(
    "limit", [0, -1, 1001, 10**30, 10**5000, True, 1.0, "5", None], ids=lambda limit: type(limit).__name__
)
async def test_a_limit_out_of_its_bounds_is_refused(limit: Any, engine: Engine) -> None:
    with pytest.raises(AkadzeError, match=r"1\.\.1000|must be an int"):
        await list_jobs(engine, limit=limit)


@pytest.mark.parametrize(
    "state",
    ["", "done", "QUEUED", "queued ", "\0", 7, 10**5000],
    ids=lambda state: str(state)[:9] if isinstance(state, str) else type(state).__name__,
)
async def test_an_unknown_state_is_refused(state: Any, engine: Engine) -> None:
    with pytest.raises(AkadzeError, match="queued, running, succeeded, failed, cancelled"):
        await list_jobs(engine, state=state)


@pytest.mark.parametrize("meta", [[1], "t", {1: 2}, {"k": object()}, {"k": float("nan")}, {"k": "\0"}])
async def test_a_meta_that_no_job_can_have_is_refused(meta: Any, engine: Engine) -> None:
    with pytest.raises(AkadzeError, match="meta"):
        await list_jobs(engine, meta=meta)


@pytest.mark.parametrize("queue", ["", "a\0", "\ud800", 7, "x" * 513])
async def test_a_queue_that_cannot_be_is_refused(queue: Any, engine: Engine) -> None:
    with pytest.raises(AkadzeError, match="queue"):
        await list_jobs(engine, queue=queue)


async def test_nothing_is_an_empty_tuple(engine: Engine) -> None:
    assert await list_jobs(engine) == ()


async def test_a_reader_with_an_engine_sees_committed_jobs_only(engine: Engine, note: Any) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue()
        assert await list_jobs(engine) == ()
        assert len(await list_jobs(connection)) == 1
    assert len(await list_jobs(engine)) == 1


async def test_a_reader_writes_nothing(engine: Engine, note: Any, database_url: str, rows: Rows) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue()
    [job_id] = await ids(rows)
    options = "-c default_transaction_read_only=on"
    async with await AsyncConnection.connect(database_url, options=options, row_factory=scalar_row) as connection:
        assert await listed(connection) == [job_id]
    async with psycopg_pool.AsyncConnectionPool(database_url, min_size=1, max_size=1, open=False) as pool:
        assert await listed(pool) == [job_id]
    async with AsyncSession(engine) as session:
        assert await listed(session) == [job_id]
    async with engine.connect() as connection:
        assert await listed(connection) == [job_id]
