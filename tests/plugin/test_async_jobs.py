"""Contract, section 12: the same in async tests, whichever plugin runs them."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Run

_TESTS = """
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from shop import app, pack, ran, send
{mark}

@pytest.fixture
def clean():
    ran.clear()

@pytest.mark.parametrize("_", range(3))
async def test_committed_jobs_are_seen_and_run(akadze_async_jobs, clean, _):
    jobs = akadze_async_jobs
    assert jobs.app is app
    async with app.engine.begin() as connection:
        await pack.using(session=connection).enqueue(order=1)
        await send.using(session=connection).enqueue(order=2)
    assert [job.task for job in await jobs.enqueued()] == ["pack", "send"]
    assert [job.args for job in await jobs.enqueued(send)] == [{{"order": 2}}]
    await jobs.assert_enqueued("pack", order=1)
    await jobs.refute_enqueued(pack, order=2)
    await jobs.drain()
    assert ran == [1, 2]
    await jobs.refute_enqueued(pack)
    with pytest.raises(AssertionError):
        await jobs.assert_enqueued("pack", order=1)

@pytest.mark.parametrize("_", range(3))
async def test_jobs_of_an_open_transaction_are_run_on_it_and_vanish(akadze_jobs, clean, _):
    async with app.engine.connect() as connection, connection.begin() as transaction:
        session = AsyncSession(connection)
        await send.using(session=session).enqueue(order=3)
        jobs = akadze_jobs.on(session)
        await jobs.assert_enqueued(send, order=3)
        akadze_jobs.refute_enqueued(send)
        await jobs.drain()
        assert ran == [3]
        with pytest.raises(AssertionError):
            await jobs.assert_enqueued(send, order=3)
        await transaction.rollback()
    assert akadze_jobs.enqueued() == []

async def test_jobs_can_be_run_from_blocking_code_beside_the_loop(akadze_jobs, clean):
    async with app.engine.begin() as connection:
        await pack.using(session=connection).enqueue(order=4)
        await send.using(session=connection).enqueue(order=5)
    akadze_jobs.drain()
    assert ran == [4, 5]

def test_a_blocking_test_beside_them(akadze_jobs, clean):
    with app.sync_engine.begin() as connection:
        send.using(session=connection).enqueue(order=6)
        akadze_jobs.on(connection).assert_enqueued(send, order=6)
    akadze_jobs.drain()
    assert ran == [6]
"""


def test_with_anyio_that_runs_all_async_tests(run: Run) -> None:
    text = _TESTS.format(mark="@pytest.fixture(scope='session')\ndef anyio_backend():\n    return 'asyncio'")
    run(text, ini="anyio_mode = auto").assert_outcomes(passed=8)


def test_with_anyio_and_a_mark(run: Run) -> None:
    text = _TESTS.format(mark="@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    run(f"{text}\npytestmark = pytest.mark.anyio\n").assert_outcomes(passed=8)


@pytest.mark.parametrize("scope", ["function", "session"])
def test_with_pytest_asyncio(run: Run, scope: str) -> None:
    ini = (
        f"asyncio_mode = auto\nasyncio_default_fixture_loop_scope = {scope}\nasyncio_default_test_loop_scope = {scope}"
    )
    run(_TESTS.format(mark=""), ini=ini, without="anyio").assert_outcomes(passed=8)
