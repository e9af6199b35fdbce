"""Contract, section 5: KeyboardInterrupt in a body is an error of the run, but for the one that somebody pressed."""

from __future__ import annotations

import pytest
from sqlalchemy import text

import akadze.testing
from akadze import Akadze
from akadze.sync.testing import drain

STATES = text("select state from akadze.jobs")


def interrupt() -> None:
    raise KeyboardInterrupt


async def test_an_async_drain_counts_it_as_an_error_of_the_run(app: Akadze) -> None:
    task = app.register(interrupt, name="t", max_attempts=1)
    async with app.engine.begin() as connection:
        await task.using(session=connection).enqueue()
    await akadze.testing.drain(app)
    async with app.engine.connect() as connection:
        assert (await connection.execute(STATES)).scalars().all() == ["failed"]


def test_a_blocking_drain_in_the_main_thread_lets_it_through(app: Akadze) -> None:
    task = app.register(interrupt, name="t", max_attempts=1)
    with app.sync_engine.begin() as connection:
        task.using(session=connection).enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(app)
    with app.sync_engine.connect() as connection:
        assert connection.execute(text("select count(*) from akadze.workers")).scalar() == 0
