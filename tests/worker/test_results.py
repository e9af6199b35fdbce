"""Contract, section 5: what a body returns, as it is stored."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pydantic
import pytest

from akadze import Akadze
from akadze.job import Job
from tests.worker.serving import RUNNERS, Serve, run_ready
from tests.worker.table import Table, enqueue


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Order(pydantic.BaseModel):
    ids: list[UUID]
    at: dict[str, datetime]
    raw: bytes
    amount: Decimal


ID = UUID("12345678-1234-5678-1234-567812345678")
AT = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
RESULTS: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "a number beyond 53 bits": (2**80 + 1, 2**80 + 1),
    "text": ("žluťoučký 🐎", "žluťoučký 🐎"),
    "a list of mappings": ([{"a": 1.5}, {"b": [True, None]}], [{"a": 1.5}, {"b": [True, None]}]),
    "a datetime": (AT, "2024-02-29T12:30:00Z"),
    "a date": (date(2024, 2, 29), "2024-02-29"),
    "a UUID": (ID, str(ID)),
    "a Decimal": (Decimal("1.10"), "1.10"),
    "an enum": (Colour.RED, "red"),
    "a tuple": ((1, 2), [1, 2]),
    "a dataclass": (Point(1, 2), {"x": 1, "y": 2}),
    "a model": (
        Order(ids=[ID], at={"noon": AT}, raw=b"abc", amount=Decimal("0.1")),
        {"ids": [str(ID)], "at": {"noon": "2024-02-29T12:30:00Z"}, "raw": "abc", "amount": "0.1"},
    ),
    "a timedelta": (timedelta(minutes=1), "PT1M"),
}


@pytest.mark.parametrize("which", RESULTS)
async def test_a_result_is_stored_in_its_json_form(app: Akadze, table: Table, serve: Serve, which: str) -> None:
    result, stored = RESULTS[which]

    @app.task("task")
    async def task() -> Any:
        return result

    job_id = await enqueue(task)
    await serve()
    row = await table.ended(job_id)
    assert (row["state"], row["result"], row["errors"]) == ("succeeded", stored, [])


@pytest.mark.parametrize(
    "result",
    [{"mean": float("nan")}, [float("inf")], object(), {1: object()}, b"\xff\xfe", "\0", "\ud800", {"\0": 1}],
    ids=["nan", "infinity", "object", "object inside", "bytes that are no text", "NUL", "surrogate", "NUL in a key"],
)
async def test_a_result_that_cannot_be_stored_is_an_error_and_frees_the_slot(
    app: Akadze, table: Table, serve: Serve, caplog: pytest.LogCaptureFixture, result: object
) -> None:
    @app.task("task", max_attempts=1)
    async def task() -> object:
        return result

    @app.task("next")
    async def following() -> None:
        pass

    job_id = await enqueue(task)
    after = await enqueue(following)
    await serve()
    assert (await table.ended(after))["state"] == "succeeded"
    row = await table.job(job_id)
    assert (row["state"], row["attempt"], row["result"]) == ("failed", 1, None)
    assert row["error_names"] == ["ResultNotJson"]
    assert "result" in row["errors"][0]["message"]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "akadze.job"]
    assert line == f"job {job_id} of task task: attempt 1 of 1 ended with ResultNotJson, now failed"


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("around", [False, True])
async def test_an_iterator_of_a_plain_function_does_its_work_in_its_thread_and_inside_around_run(
    app: Akadze, table: Table, serve: Serve, around: bool, runner: str
) -> None:
    threads: list[int] = []
    open_blocks: list[int] = []
    seen: list[bool] = []

    @contextmanager
    def block(job: Job) -> Iterator[None]:
        open_blocks.append(job.id)
        yield
        open_blocks.clear()

    if around:
        app.hooks.around_run.append(block)

    @app.task("task")
    def task() -> dict[str, Any]:
        threads.append(threading.get_ident())
        return {"top": map(look, range(2)), "deep": [map(look, range(2))]}

    def look(number: int) -> int:
        threads.append(threading.get_ident())
        seen.append(bool(open_blocks))
        return number

    job_id = await enqueue(task)
    await run_ready(runner, app, serve)
    assert (await table.ended(job_id))["result"] == {"top": [0, 1], "deep": [[0, 1]]}
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    assert seen == [around] * 4


async def test_an_iterator_of_a_plain_function_is_inside_its_timeout(app: Akadze, table: Table, serve: Serve) -> None:
    over = threading.Event()

    @app.task("task", timeout=timedelta(seconds=0.1), max_attempts=1)
    def task() -> Any:
        return (over.wait() for _ in range(1))

    job_id = await enqueue(task)
    await serve()
    try:
        assert (await table.ended(job_id))["error_names"] == ["TimeoutError"]
    finally:
        over.set()


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_after_run_is_called_although_the_result_has_no_json_form(
    app: Akadze, table: Table, serve: Serve, colour: str
) -> None:
    called: list[int] = []
    app.hooks.after_run.append(lambda job: called.append(job.id))

    async def body() -> Any:
        return object()

    def plain_body() -> Any:
        return object()

    job_id = await enqueue(app.register(body if colour == "async" else plain_body, name="task", max_attempts=1))
    await serve()
    assert (await table.ended(job_id))["error_names"] == ["ResultNotJson"]
    assert called == [job_id]
