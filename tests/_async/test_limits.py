"""Contract, section 9: the calls that set, clear and list limits, and how drain is held back by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, AkadzeError, EnqueueError, LimitSummary, clear_limit, list_limits, set_limit
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import states

MINUTE = timedelta(minutes=1)


async def test_what_is_left_out_keeps_its_value(engine: Engine) -> None:
    async with engine.begin() as connection:
        assert await set_limit(connection, "k", 4) is None
        assert await list_limits(connection) == (LimitSummary("k", 4, None, None),)
        await set_limit(connection, "k", max_starts=100, window=MINUTE)
        assert await list_limits(connection) == (LimitSummary("k", 4, 100, MINUTE),)
        await set_limit(connection, "k", max_running=0)
        assert await list_limits(connection) == (LimitSummary("k", 0, 100, MINUTE),)
        await set_limit(connection, "k", 7, max_starts=0, window=timedelta(microseconds=1))
        assert await list_limits(connection) == (LimitSummary("k", 7, 0, timedelta(microseconds=1)),)


async def test_limits_are_listed_by_key(engine: Engine) -> None:
    async with engine.begin() as connection:
        for key in ("b", "ž", "a b", "A", "%s :x"):
            await set_limit(connection, key, 2147483647)
    assert [limit.key for limit in await list_limits(engine)] == ["%s :x", "A", "a b", "b", "ž"]
    assert {limit.max_running for limit in await list_limits(engine)} == {2147483647}


@pytest.mark.parametrize(
    "window",
    [
        timedelta(microseconds=1), timedelta(milliseconds=1), timedelta(seconds=0.1), MINUTE, timedelta(days=30),
        timedelta(days=400, seconds=1, microseconds=1), timedelta(days=36_500),
    ],
    ids=str,
)  # fmt: skip
async def test_a_window_comes_back_as_it_was_set(window: timedelta, engine: Engine) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", max_starts=1, window=window)
    assert await list_limits(engine) == (LimitSummary("k", None, 1, window),)


async def test_a_window_of_days_is_no_longer_on_the_day_on_which_the_clocks_change(engine: Engine) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", max_starts=1, window=timedelta(days=1))
        await connection.execute(text("set local time zone 'Europe/Berlin'"))
        began = await connection.execute(
            text("""select timestamptz '2026-03-29 20:00+02' - "window" = '2026-03-28 20:00+02' from akadze.limits""")
        )
        assert began.scalar_one()


@pytest.mark.parametrize(
    "given",
    [
        {}, {"max_running": -1}, {"max_running": 2**31}, {"max_running": 1.0}, {"max_running": True},
        {"max_running": "1"}, {"max_starts": 1}, {"window": MINUTE}, {"max_running": 1, "max_starts": 1},
        {"max_running": 1, "window": MINUTE}, {"max_starts": -1, "window": MINUTE},
        {"max_starts": 2**31, "window": MINUTE}, {"max_starts": 1.5, "window": MINUTE},
        {"max_starts": 1, "window": timedelta(0)}, {"max_starts": 1, "window": -MINUTE},
        {"max_starts": 1, "window": 60}, {"max_starts": 1, "window": timedelta.max},
        {"key": "", "max_running": 1}, {"key": None, "max_running": 1}, {"key": "a\0", "max_running": 1},
        {"key": "\ud800", "max_running": 1}, {"key": "x" * 513, "max_running": 1}, {"key": 7, "max_running": 1},
    ],
    ids=lambda given: ascii(given)[:60],
)  # fmt: skip
async def test_a_limit_that_cannot_be_is_refused_and_changes_nothing(given: dict[str, Any], engine: Engine) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", 4)
        with pytest.raises(AkadzeError) as raised:
            await set_limit(connection, **{"key": "k", **given})
        await connection.execute(text("select 1"))
    assert not isinstance(raised.value, EnqueueError)
    assert await list_limits(engine) == (LimitSummary("k", 4, None, None),)


async def test_clearing_deletes_the_policy_and_its_marks_and_no_others(engine: Engine, rows: Rows) -> None:
    async with engine.begin() as connection:
        for key in ("k", "other"):
            await set_limit(connection, key, max_starts=1, window=MINUTE)
    await rows("insert into akadze.limit_starts (key, started_at) values ('k', now()), ('k', now()), ('other', now())")
    for _ in range(2):
        async with engine.begin() as connection:
            assert await clear_limit(connection, "k") is None
    assert [limit.key for limit in await list_limits(engine)] == ["other"]
    assert await rows("select key from akadze.limit_starts") == [{"key": "other"}]


@pytest.mark.parametrize("key", ["", "a\0", None, 7, "x" * 513])
async def test_clearing_refuses_what_is_no_key(key: Any, engine: Engine) -> None:
    async with engine.begin() as connection:
        with pytest.raises(AkadzeError, match="key"):
            await clear_limit(connection, key)
        await connection.execute(text("select 1"))


@pytest.fixture
def work(app: Akadze) -> Any:
    @app.task("work")
    def work(n: int = 0) -> None: ...

    return work


async def test_a_key_without_a_row_has_no_limit(engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await work.using(session=connection, limit_key="unheard of").enqueue_many([{}] * 3)
    await drain(app)
    assert await states(rows) == ["succeeded"] * 3
    assert await rows("select from akadze.limit_starts") == []


async def test_a_job_that_a_limit_holds_back_makes_drain_step_until_its_runs_are_out(
    engine: Engine, work: Any, app: Akadze, rows: Rows
) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", max_starts=2, window=timedelta(hours=1))
        await work.using(session=connection, limit_key="k", priority=9).enqueue_many([{}] * 3)
        await work.using(session=connection).enqueue_many([{}] * 2)
    with pytest.raises(AkadzeError, match="task 'work' are still ready after 6 runs, held back by the limit of their"):
        await drain(app, limit=6)
    assert await states(rows) == ["succeeded", "succeeded", "queued", "succeeded", "succeeded"]
    assert await rows("select key from akadze.limit_starts") == [{"key": "k"}, {"key": "k"}]


async def test_drain_goes_on_when_the_window_has_passed(engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", max_starts=1, window=timedelta(milliseconds=200))
        await work.using(session=connection, limit_key="k").enqueue_many([{}] * 3)
    await drain(app)
    assert await states(rows) == ["succeeded"] * 3
    [row] = await rows(
        "select max(started_at) - min(started_at) >= interval '400 milliseconds' as apart from akadze.jobs"
    )
    assert row == {"apart": True}


@pytest.mark.parametrize(
    "zero", [{"max_running": 0}, {"max_starts": 0, "window": timedelta(hours=1)}, {"max_running": 0, "max_starts": 5}]
)
async def test_zero_lets_none_start(zero: dict[str, Any], engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", **({"window": timedelta(hours=1)} | zero if "max_starts" in zero else zero))
        await work.using(session=connection, limit_key="k").enqueue()
        await work.using(session=connection).enqueue()
    with pytest.raises(AkadzeError, match="'work' are ready, but the limit of their limit_key is 0"):
        await drain(app)  # at once: that many steps would take most of a minute
    assert await states(rows) == ["queued", "succeeded"]
    async with engine.begin() as connection:
        await clear_limit(connection, "k")
        await set_limit(connection, "k", 1)
    await drain(app)
    assert await states(rows) == ["succeeded"] * 2


async def test_running_jobs_of_others_count(engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", 1)
        await work.using(session=connection, limit_key="k").enqueue_many([{}] * 2)
    await rows("update akadze.jobs set state = 'running' where id = (select max(id) from akadze.jobs)")
    with pytest.raises(AkadzeError, match="still ready"):
        await drain(app, limit=2)
    assert await states(rows) == ["queued", "running"]


async def test_after_clearing_the_window_starts_from_zero(engine: Engine, work: Any, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        await set_limit(connection, "k", max_starts=1, window=timedelta(hours=1))
        await work.using(session=connection, limit_key="k").enqueue()
    await drain(app)
    async with engine.begin() as connection:
        await clear_limit(connection, "k")
        await work.using(session=connection, limit_key="k").enqueue_many([{}] * 2)
    await drain(app)
    async with engine.begin() as connection:
        await set_limit(connection, "k", max_starts=1, window=timedelta(hours=1))
        await work.using(session=connection, limit_key="k").enqueue()
    await drain(app)
    assert await states(rows) == ["succeeded"] * 4
