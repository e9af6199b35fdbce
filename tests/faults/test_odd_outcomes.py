"""Contract, section 5: what a body ends with that nobody expected."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from akadze import Akadze, EnqueueError, Retry, Snooze, current
from tests.families import FULL
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
    row = await table.ended(job)
    assert (row["state"], row["error_names"]) == ("failed", ["ResultNotJson"])
    assert served.up


@FULL
async def test_arguments_of_more_values_than_the_database_takes_are_refused(app: Akadze) -> None:
    @app.task("task")
    async def task(numbers: list[int]) -> None:
        pass

    with pytest.raises(EnqueueError, match="'numbers' holds more than 8388608 values"):
        await enqueue(task, {"numbers": [1] * TOO_MANY})


@FULL  # half a minute for one text of 25 MB
async def test_a_text_may_hold_as_many_commas_as_it_likes(app: Akadze, table: Table) -> None:
    @app.task("task")
    async def task(text: str) -> None:
        pass

    job = await enqueue(task, {"text": '",\\' * TOO_MANY})
    assert await table.value("select length(args ->> 'text') from akadze.jobs where id = %s", job) == 3 * TOO_MANY


async def refuse(table: Table, when: str) -> None:
    """Let the database refuse the outcomes of this kind, as it does with values that it cannot hold."""
    await table.rows(
        "create function refuse() returns trigger language plpgsql as"
        " $$begin raise exception 'refused' using errcode = 'data_exception'; end$$"
    )
    await table.rows(
        "create trigger refuse before update on akadze.jobs for each row"
        f" when (old.state = 'running' and {when}) execute function refuse()"
    )


@pytest.mark.parametrize("hooked", [False, True], ids=["", "with hooks"])
async def test_a_result_that_the_database_refuses_is_an_error_of_its_run_and_of_no_other(
    hooked: bool, app: Akadze, table: Table, serve: Serve
) -> None:
    go = asyncio.Event()

    @app.task("task", max_attempts=2, backoff=lambda attempt: timedelta(0))
    async def task(value: str) -> str:
        await go.wait()
        return value if current().job.run_count == 1 else "another"

    if hooked:
        app.hooks.on_transition.append(lambda connection, job, before, after: None)
    await refuse(table, "new.result = '\"odd\"'")
    [odd, *others] = [await enqueue(task, {"value": value}) for value in ("odd", "good", "held")]
    await serve(slots=3)
    for job in (odd, *others):
        await table.in_state(job, "running")
    await table.rows("begin")
    await table.rows("select from akadze.jobs where id = %s for update", others[-1])
    go.set()
    row = await table.ended(odd)
    await table.ended(others[0])
    await table.rows("commit")
    await table.ended(*others)

    assert (row["state"], row["attempt"], row["result"], row["error_names"]) == (
        "succeeded",
        1,
        "another",
        ["ResultNotJson"],
    )
    assert [(other["run_count"], other["result"]) for other in await table.jobs(*others)] == [(1, "good"), (1, "held")]


async def test_a_database_that_refuses_the_error_too_stops_the_worker(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("task")
    async def task() -> None:
        pass

    await refuse(table, "true")
    await enqueue(task)
    served = await serve()
    assert isinstance(await served.failed(), psycopg.DataError)
