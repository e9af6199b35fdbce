"""What a body ends with that nobody expected."""

from __future__ import annotations

from datetime import timedelta

import pytest

from akadze import Akadze, EnqueueError, Retry, Snooze
from akadze._worker.writer import Writer
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue

#: More values in one list make PostgreSQL ask for a gigabyte at once, which is no data error to it.
TOO_MANY = 2**23 + 1


class _Unset(Retry):
    def __init__(self) -> None:
        pass  # and delay stays unset


class _Odd(Snooze):
    def __init__(self) -> None:
        self.delay = "soon"  # type: ignore[assignment]  # that is the point


class _Evil(Retry):
    @property
    def delay(self) -> timedelta:
        raise self

    @delay.setter
    def delay(self, value: object) -> None:
        pass


@pytest.mark.parametrize("kind", [_Unset, _Odd, _Evil])
async def test_a_retry_or_snooze_that_cannot_be_read_is_an_error_of_its_run(
    kind: type[Exception], app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=2, backoff=lambda attempt: timedelta(0))
    async def task() -> None:
        raise kind()

    job = await enqueue(task)
    await serve()
    row = await table.ended(job)
    assert (row["state"], row["run_count"], row["attempt"]) == ("failed", 2, 2)
    assert kind.__name__ in row["errors"][0]["message"]


async def test_a_result_of_more_values_than_the_database_takes_fails_its_run(
    app: Akadze, table: Table, serve: Serve
) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> list[int]:
        return [1] * TOO_MANY

    job = await enqueue(task)
    served = await serve()
    row = await table.ended(job, timeout=60)
    assert (row["state"], row["error_names"]) == ("failed", ["ResultNotJson"])
    assert served.up


async def test_arguments_of_more_values_than_the_database_takes_are_refused(app: Akadze) -> None:
    @app.task("task")
    async def task(numbers: list[int]) -> None:
        pass

    with pytest.raises(EnqueueError, match="'numbers' holds more than 8388608 values"):
        await enqueue(task, {"numbers": [1] * TOO_MANY})


async def test_a_text_may_hold_as_many_commas_as_it_likes(app: Akadze, table: Table) -> None:
    @app.task("task")
    async def task(text: str) -> None:
        pass

    job = await enqueue(task, {"text": '",\\' * TOO_MANY})
    assert await table.value("select length(args ->> 'text') from akadze.jobs where id = %s", job) == 3 * TOO_MANY


def test_an_outcome_is_replaced_once() -> None:
    """A database that refuses the replacement, too, has another reason, which stops the worker instead of a loop."""
    writer = Writer()
    writer.hand_back([(1, 1)])
    assert writer.replace_refused_value(writer.take()[0])
    assert not writer.replace_refused_value(writer.take()[0])
