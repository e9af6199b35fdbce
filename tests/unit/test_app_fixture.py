"""The `app` fixture serves tests with a loop and tests without one, and is closed without a warning in both."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from akadze import Akadze


async def test_a_test_with_a_loop_uses_the_async_engine(app: Akadze) -> None:
    async with app.engine.connect() as connection:
        assert (await connection.execute(text("select count(*) from akadze.jobs"))).scalar() == 0


def test_a_test_without_a_loop_uses_the_blocking_engine(app: Akadze) -> None:
    with app.sync_engine.connect() as connection:
        assert connection.execute(text("select count(*) from akadze.jobs")).scalar() == 0


def test_a_test_without_a_loop_may_run_one_of_its_own(app: Akadze) -> None:
    async def count() -> object:
        async with app.engine.connect() as connection:
            return (await connection.execute(text("select count(*) from akadze.jobs"))).scalar()

    assert asyncio.run(count()) == 0


def test_an_app_that_connects_nowhere_is_closed_as_well(app: Akadze) -> None:
    assert app.tasks == {}
