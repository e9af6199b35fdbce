"""Contract, section 12: assert_enqueued compares the stored form of a live job's arguments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from akadze import Akadze, AkadzeError
from akadze.testing import assert_enqueued

from .conftest import Engine, Rows


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note")
    def note(n: int, text: str = "none") -> None: ...

    return note


async def test_a_queued_job_is_found_by_its_arguments(engine: Engine, note: Any, app: Akadze) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
        await note.using(session=connection, delay=timedelta(days=1)).enqueue(n=2, text="some")
    assert await assert_enqueued(app, "note", n=1) is None
    await assert_enqueued(app, "note", n=1, text="none")
    await assert_enqueued(app, "note", n=2, text="some")
    for other in ({"n": 3}, {"n": 1, "text": "some"}, {"n": 2}, {"n": 2, "text": "Some"}):
        with pytest.raises(AssertionError, match="no queued or running job of task 'note' has these arguments"):
            await assert_enqueued(app, "note", **other)


@pytest.mark.parametrize(
    ("state", "found"),
    [("queued", True), ("running", True), ("succeeded", False), ("failed", False), ("cancelled", False)],
)
async def test_a_job_that_has_ended_does_not_count(
    state: str, found: bool, engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
    await rows("update akadze.jobs set state = :state", state=state)
    if found:
        await assert_enqueued(app, "note", n=1)
    else:
        with pytest.raises(AssertionError):
            await assert_enqueued(app, "note", n=1)


async def test_the_job_of_another_task_does_not_count(engine: Engine, note: Any, app: Akadze) -> None:
    @app.task("other")
    def other(n: int) -> None: ...

    async with engine.begin() as connection:
        await other.using(session=connection).enqueue(n=1)
    with pytest.raises(AssertionError):
        await assert_enqueued(app, "note", n=1)


async def test_uncommitted_jobs_do_not_count(connection: AsyncConnection, note: Any, app: Akadze) -> None:
    await note.using(session=connection).enqueue(n=1)
    with pytest.raises(AssertionError):
        await assert_enqueued(app, "note", n=1)


async def test_values_can_be_given_as_the_task_receives_them(engine: Engine, app: Akadze) -> None:
    @app.task("typed")
    def typed(at: datetime, key: UUID, price: Decimal, where: Address, big: int, more: dict[str, Any]) -> None: ...

    given: dict[str, Any] = {
        "at": datetime(2030, 1, 2, 3, tzinfo=UTC),
        "key": UUID(int=7),
        "price": Decimal("0.10"),
        "where": Address(street="Long"),
        "big": 2**80,
        "more": {"b": 1, "a": [None, True]},
    }
    async with engine.begin() as connection:
        await typed.using(session=connection).enqueue(**given)
    await assert_enqueued(app, "typed", **given)
    await assert_enqueued(
        app,
        "typed",
        at="2030-01-02T03:00:00Z",
        key=str(UUID(int=7)),
        price="0.10",
        where={"street": "Long"},
        big=2**80,
        more={"a": [None, True], "b": 1},
    )
    for name, other in (
        ("at", datetime(2030, 1, 2, 4, tzinfo=UTC)),
        ("big", 2**80 + 1),
        ("where", Address(street="Long", number=2)),
        ("more", {"b": True, "a": [None, True]}),
        ("more", {"b": 1}),
    ):
        with pytest.raises(AssertionError):
            await assert_enqueued(app, "typed", **(given | {name: other}))


async def test_parameters_named_app_and_task_can_be_asked_for(engine: Engine, app: Akadze) -> None:
    @app.task("named")
    def named(app: str, task: str, self: int = 0) -> None: ...

    async with engine.begin() as connection:
        await named.using(session=connection).enqueue(app="a", task="t", self=2)
    await assert_enqueued(app, "named", app="a", task="t", self=2)
    with pytest.raises(AssertionError):
        await assert_enqueued(app, "named", app="a", task="t")


async def test_a_task_that_is_not_registered_has_no_job(note: Any, app: Akadze, rows: Rows) -> None:
    await rows("insert into akadze.jobs (task) values ('nothing')")
    with pytest.raises(AssertionError, match="task 'nothing' is not registered"):
        await assert_enqueued(app, "nothing")


async def test_arguments_that_the_task_cannot_have_are_those_of_no_job(engine: Engine, note: Any, app: Akadze) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
    for wrong in ({"n": "x"}, {"m": 1}, {}):
        with pytest.raises(AssertionError, match="no job can have these arguments: task 'note'"):
            await assert_enqueued(app, "note", **wrong)


async def test_the_failure_shows_no_arguments(engine: Engine, note: Any, app: Akadze) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1, text="s3cret-1")
    with pytest.raises(AssertionError) as raised:
        await assert_enqueued(app, "note", n=1, text="s3cret-2")
    assert "s3cret" not in str(raised.value)


async def test_the_failure_tells_what_jobs_are_there(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    @app.task("other")
    def other() -> None: ...

    async def said(task: Any, **arguments: Any) -> str:
        with pytest.raises(AssertionError) as raised:
            await assert_enqueued(app, task, **arguments)
        return str(raised.value)

    text = await said("other")
    assert text.endswith(
        "no job of any task is queued or running (uncommitted ones are seen on their own session only)"
    )
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
        await note.using(session=connection).enqueue(n=2, text="some")
    first, second = [row["id"] for row in await rows("select id from akadze.jobs order by id")]
    text = await said("note", n=2)
    assert text.endswith(f"2 with other arguments, which differ: job {first} in n, job {second} in text")
    assert (await said("other")).endswith(": of other tasks there are 'note' (2)")


async def test_no_more_than_a_few_jobs_are_told(engine: Engine, note: Any, app: Akadze) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many({"n": n} for n in range(20))
    with pytest.raises(AssertionError, match=r"20 with other arguments, which differ: (job \d+ in n, ){5}\.\.\.$"):
        await assert_enqueued(app, "note", n=20)


async def test_a_task_can_be_given_for_its_name(engine: Engine, note: Any, app: Akadze) -> None:
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
    await assert_enqueued(app, note, n=1)
    with pytest.raises(AssertionError, match="no queued or running job of task 'note'"):
        await assert_enqueued(app, note, n=2)


@pytest.mark.parametrize("task", [None, 7, b"note"])
async def test_what_is_no_task_and_no_app_is_refused(task: Any, app: Akadze) -> None:
    with pytest.raises(AkadzeError, match="pass a task, or its name"):
        await assert_enqueued(app, task)
    with pytest.raises(AkadzeError, match="pass the Akadze app"):
        await assert_enqueued(task, "note")
