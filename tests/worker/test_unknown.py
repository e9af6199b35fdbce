"""Contract, section 5: a worker tells of queues that no task uses, and of jobs of tasks that its app does not have."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from akadze import Akadze
from tests.waiting import until
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def other(app: Akadze) -> Akadze:
    """Another app of the same database, which has other tasks."""
    other = Akadze(engine=app.engine)
    other.register(_body, name="stranger")
    other.register(_body, name="elsewhere", queue="other")
    return other


async def _body() -> None:
    pass


async def test_queues_that_nothing_uses_are_named_in_one_warning(
    app: Akadze, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app.register(_body, name="task", queue="mail")
    app.add_schedule("task", every=timedelta(hours=1), queue="nightly")
    await serve(queues=["mail", "nightly", "mial", "defualt"])
    [warning] = warnings(caplog)
    assert warning.startswith(
        "no task and no schedule of the app uses queue 'mial' or queue 'defualt', which this worker"
    )


async def test_queues_of_tasks_and_schedules_are_served_without_a_word(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    task = app.register(_body, name="task", queue="mail")
    app.add_schedule("task", every=timedelta(hours=1), queue="nightly")
    await serve()
    await serve(queues=["mail", "nightly"])
    await table.ended(await enqueue(task))
    assert warnings(caplog) == []


@pytest.mark.parametrize("limit_key", [None, "tenant"])
async def test_a_task_that_the_app_does_not_have_is_named_once(
    app: Akadze, other: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, limit_key: str | None
) -> None:
    task = app.register(_body, name="task")
    for _ in range(3):
        await enqueue(other.tasks["stranger"], limit_key=limit_key)
    await enqueue(other.tasks["elsewhere"])
    await enqueue(task, priority=1)
    served = await serve(queues=["default"])
    assert served.worker._serving is not None
    upkeep = served.worker._serving._upkeep
    for _ in range(2):
        upkeep._unknown_tasks.next_at = 0.0
        upkeep._kick.set()
        await until(lambda: upkeep._unknown_tasks.next_at > 0)
    await table.ended(await enqueue(task))
    await served.stop()
    [warning] = warnings(caplog)
    assert warning.startswith(
        "queue 'default' holds jobs of task 'stranger', which the app of this worker does not have"
    )
    states = await table.rows("select state, count(*) from akadze.jobs where task = 'stranger' group by 1")
    assert states == [{"state": "queued", "count": 3}]


async def test_an_unknown_task_that_comes_later_is_named_as_soon_as_it_is_seen(
    app: Akadze, other: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    task = app.register(_body, name="task")
    await serve()
    await table.ended(await enqueue(task))
    await enqueue(other.tasks["stranger"])
    await until(lambda: warnings(caplog))
    [warning] = warnings(caplog)
    assert "'stranger'" in warning
