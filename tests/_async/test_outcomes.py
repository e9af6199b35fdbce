"""Contract, sections 4 and 5: what a run's end does to its job, as drain shows it."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pydantic
import pytest

from akadze import Akadze, Cancel, Fail, Retry, Snooze, request_cancel
from akadze.testing import drain
from tests.coroutines import CancelledError, raising_task, self_cancelling_task, sleeping_task

from .conftest import Engine, Rows
from .table import ids

HOUR = timedelta(hours=1)
OUTCOME = (
    "select state, run_count, attempt, snoozes, result, finished_at is not null as ended, worker_id,"
    " jsonb_array_length(errors) as errors, errors -> -1 ->> 'error' as error from akadze.jobs"
)
#: What an outcome leaves where it says nothing else.
USUAL: dict[str, Any] = {
    "run_count": 1, "attempt": 0, "snoozes": 0, "result": None, "ended": True, "worker_id": None, "errors": 0,
    "error": None,
}  # fmt: skip
#: What an error leaves of a run that was asked to cancel: its attempt is spent, as that of any run with an error.
SPENT = {"attempt": 1, "errors": 1}


class Odd(BaseException):
    pass


async def run_one(engine: Engine, task: Any, app: Akadze, **options: Any) -> None:
    async with engine.begin() as connection:
        await task.using(session=connection, **options).enqueue()
    await drain(app)


def raising(app: Akadze, error: BaseException, **options: Any) -> Any:
    def body() -> None:
        raise error

    return app.register(body, name="raising", **options)


@pytest.mark.parametrize(
    ("error", "attempts", "left"),
    [
        (ZeroDivisionError("x"), 2, {"state": "queued", "attempt": 1, "ended": False, "errors": 1}),
        (ZeroDivisionError("x"), 1, {"state": "failed", "attempt": 1, "errors": 1}),
        (Retry(HOUR), 2, {"state": "queued", "attempt": 1, "ended": False, "errors": 1}),
        (Retry(HOUR), 1, {"state": "failed", "attempt": 1, "errors": 1}),
        (Retry(), 2, {"state": "queued", "attempt": 1, "ended": False, "errors": 1}),
        (Retry(), 1, {"state": "failed", "attempt": 1, "errors": 1}),
        (Snooze(HOUR), 1, {"state": "queued", "snoozes": 1, "ended": False}),
        (Fail("no use"), 5, {"state": "failed", "attempt": 1, "errors": 1}),
        (Fail(), 5, {"state": "failed", "attempt": 1, "errors": 1}),
        (Cancel("not wanted"), 5, {"state": "cancelled", "errors": 1}),
        (Cancel(), 5, {"state": "cancelled"}),
        *[
            (error, attempts, {"attempt": 1, "errors": 1, **left})
            for error in (CancelledError(), SystemExit(3), GeneratorExit(), Odd(), TimeoutError())
            for attempts, left in ((1, {"state": "failed"}), (2, {"state": "queued", "ended": False}))
        ],
    ],
    ids=repr,
)
async def test_how_a_run_ends(
    error: BaseException, attempts: int, left: dict[str, Any], engine: Engine, app: Akadze, rows: Rows
) -> None:
    await run_one(engine, raising(app, error, max_attempts=attempts), app)
    named = {"error": type(error).__name__} if left.get("errors") else {}
    assert await rows(OUTCOME) == [USUAL | left | named]


async def test_a_stop_iteration_ends_no_loop_but_the_run(engine: Engine, app: Akadze, rows: Rows) -> None:
    await run_one(engine, raising(app, StopIteration(7), max_attempts=1), app)
    [row] = await rows("select state, cast(errors as text) as errors from akadze.jobs")
    assert row["state"] == "failed"
    assert "StopIteration" in row["errors"]  # as the cause, where a coroutine stands between


@pytest.mark.parametrize("error", [SystemExit(3), CancelledError(), Odd(), Cancel("no")], ids=repr)
async def test_a_coroutine_function_ends_in_the_same_way(
    error: BaseException, engine: Engine, app: Akadze, rows: Rows
) -> None:
    await run_one(engine, raising_task(app, error), app)
    left = {"state": "cancelled"} if isinstance(error, Cancel) else {"state": "failed", "attempt": 1}
    assert await rows(OUTCOME) == [USUAL | left | {"errors": 1, "error": type(error).__name__}]


@pytest.mark.parametrize(
    ("waits", "left"),
    [
        (True, {"state": "failed", "attempt": 1, "errors": 1, "error": "CancelledError"}),
        (False, {"state": "succeeded", "result": 7}),
    ],
)
async def test_a_body_that_cancels_itself_ends_its_run_and_nothing_else(
    waits: bool, left: dict[str, Any], engine: Engine, app: Akadze, rows: Rows
) -> None:
    await run_one(engine, self_cancelling_task(app, waits=waits), app)
    assert await rows(OUTCOME) == [USUAL | left]


async def test_a_timeout_is_an_error_of_the_run(engine: Engine, app: Akadze, rows: Rows) -> None:
    await run_one(engine, sleeping_task(app), app)
    assert await rows(OUTCOME) == [USUAL | {"state": "failed", "attempt": 1, "errors": 1, "error": "TimeoutError"}]


async def test_a_delay_of_the_outcome_is_the_delay_of_the_next_run(engine: Engine, app: Akadze, rows: Rows) -> None:
    for number, (error, low, high) in enumerate(
        [
            (Retry(HOUR), 3590, 3601),
            (Snooze(2 * HOUR), 7190, 7201),
            (Retry(timedelta(days=1000)), 364.9 * 86400, 365 * 86400 + 1),
        ]
    ):
        task = app.register(raising_body(error), name=f"task {number}")
        await run_one(engine, task, app)
        [row] = await rows(
            "select cast(extract(epoch from run_at - now()) as double precision) as seconds from akadze.jobs"
            " where task = :task",
            task=task.name,
        )
        assert low < row["seconds"] < high


def raising_body(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize("error", [Retry(-HOUR), Snooze(-HOUR), Retry(timedelta(0)), Snooze(timedelta(0))], ids=repr)
async def test_a_delay_below_zero_is_none(error: BaseException, engine: Engine, app: Akadze, rows: Rows) -> None:
    runs: list[int] = []

    @app.task("work", max_attempts=5)
    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise error

    await run_one(engine, work, app)
    assert len(runs) == 2
    assert [row["state"] for row in await rows("select state from akadze.jobs")] == ["succeeded"]


async def test_the_first_default_delay_is_half_a_second_to_one(engine: Engine, app: Akadze, rows: Rows) -> None:
    await run_one(engine, raising(app, ZeroDivisionError()), app)
    [row] = await rows(
        "select cast(extract(epoch from run_at - started_at) as double precision) as seconds from akadze.jobs"
    )
    assert 0.5 <= row["seconds"] < 11


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 150), (0.5, 225), (1.0, 300)])
async def test_chance_spreads_the_default_delay_over_the_upper_half_of_its_most(
    chance: float, seconds: int, engine: Engine, app: Akadze, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._bodies.random.random", lambda: chance)
    task = raising(app, Retry(), max_attempts=30)
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue()
    await rows("update akadze.jobs set attempt = 20")
    await drain(app)
    [row] = await rows(
        "select cast(extract(epoch from run_at - now()) as double precision) as seconds from akadze.jobs"
    )
    assert seconds - 10 < row["seconds"] <= seconds


async def test_a_task_s_own_backoff_is_asked_with_the_number_of_the_attempt(
    engine: Engine, app: Akadze, rows: Rows
) -> None:
    asked: list[int] = []

    def backoff(attempt: int) -> timedelta:
        asked.append(attempt)
        return timedelta(0)

    runs: list[int] = []

    @app.task("work", max_attempts=4, backoff=backoff)
    def work() -> None:
        runs.append(1)
        raise Retry if len(runs) == 2 else ZeroDivisionError

    await run_one(engine, work, app)
    assert asked == [1, 2, 3]
    assert await rows(OUTCOME) == [
        USUAL | {"state": "failed", "run_count": 4, "attempt": 4, "errors": 4, "error": "ZeroDivisionError"}
    ]


@pytest.mark.parametrize("answer", [None, 5, ZeroDivisionError()], ids=repr)
async def test_a_backoff_that_fails_gives_way_to_the_default(
    answer: Any, engine: Engine, app: Akadze, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    def backoff(attempt: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    await run_one(engine, raising(app, ZeroDivisionError(), backoff=backoff), app)
    assert await rows("select state, attempt, run_at > started_at as later from akadze.jobs") == [
        {"state": "queued", "attempt": 1, "later": True}
    ]
    warned = [record for record in caplog.records if record.levelname == "WARNING" and "backoff" in record.getMessage()]
    assert [record.name for record in warned] == ["akadze.job"]


async def test_the_last_ten_errors_are_kept(engine: Engine, app: Akadze, rows: Rows) -> None:
    runs: list[int] = []

    @app.task("work", max_attempts=13, backoff=lambda attempt: timedelta(0))
    def work() -> None:
        runs.append(1)
        raise ValueError(f"run {len(runs)}")

    await run_one(engine, work, app)
    [row] = await rows("select errors, attempt from akadze.jobs")
    assert row["attempt"] == 13
    assert [error["message"] for error in row["errors"]] == [f"run {n}" for n in range(4, 14)]
    for error in row["errors"]:
        assert sorted(error) == ["at", "error", "message"]
        assert error["error"] == "ValueError"
        assert datetime.fromisoformat(error["at"]).utcoffset() == timedelta(0)


async def test_an_error_names_its_causes_and_shows_no_password_nor_breaks_the_row(
    engine: Engine, app: Akadze, rows: Rows
) -> None:
    @app.task("work", max_attempts=1)
    def work() -> None:
        try:
            raise ConnectionError("postgresql://user:s3cret@host/db was away")
        except ConnectionError as error:
            raise ValueError("a\0b \ud800 " + "x" * 10_000 + " the end") from error

    await run_one(engine, work, app)
    [row] = await rows("select errors -> 0 ->> 'message' as message from akadze.jobs")
    message = row["message"]
    assert message.startswith("a\\u0000b \\ud800 x")
    assert "the end" in message
    assert "ConnectionError" in message
    assert "s3cret" not in message
    assert len(message.encode()) <= 2048


class Address(pydantic.BaseModel):
    street: str
    at: datetime


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None), (True, True), (0, 0), (10**40, 10**40), (0.1, 0.1), ("", ""), ("žluť", "žluť"), ([], []),
        ({"a": [1, None]}, {"a": [1, None]}), ((1, 2), [1, 2]),
        (datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "2030-01-02T03:04:05Z"), (date(2030, 1, 2), "2030-01-02"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"), (Decimal("0.10"), "0.10"), (Colour.RED, "red"),
        (Address(street="Long", at=datetime(2030, 1, 1, tzinfo=UTC)), {"street": "Long", "at": "2030-01-01T00:00:00Z"}),
        (Point(1, Decimal("2.50")), {"x": 1, "y": "2.50"}),
        ({"deep": {"when": date(2030, 1, 2)}}, {"deep": {"when": "2030-01-02"}}),
    ],
    ids=repr,
)  # fmt: skip
async def test_a_result_is_stored_in_its_json_form(
    value: Any, stored: Any, engine: Engine, app: Akadze, rows: Rows
) -> None:
    await run_one(engine, app.register(lambda: value, name="result"), app)
    assert await rows("select state, result from akadze.jobs") == [{"state": "succeeded", "result": stored}]


@pytest.mark.parametrize(
    "value", [object(), float("nan"), [float("inf")], "a\0", {"k": "\ud800"}, {"k": {object()}}, b"\xff"]
)
async def test_a_result_that_cannot_be_stored_is_an_error_of_the_run(
    value: Any, engine: Engine, app: Akadze, rows: Rows
) -> None:
    task = app.register(lambda: value, name="result", max_attempts=1)
    await run_one(engine, task, app)
    await run_one(engine, task, app, max_attempts=2)
    error = {"attempt": 1, "errors": 1, "error": "ResultNotJson"}
    assert await rows(f"{OUTCOME} order by id") == [
        USUAL | error | {"state": "failed"},
        USUAL | error | {"state": "queued", "ended": False},
    ]


@pytest.mark.parametrize(
    ("error", "left"),
    [(None, {"state": "succeeded", "result": "done"}), (Snooze(HOUR), {"snoozes": 1}), (Cancel(), {}),
     (ZeroDivisionError(), SPENT), (Retry(), SPENT), (Fail("no"), SPENT)],
    ids=repr,
)  # fmt: skip
async def test_a_cancel_request_during_the_run_wins_over_all_but_success(
    error: Any, left: dict[str, Any], engine: Engine, app: Akadze, rows: Rows
) -> None:
    from akadze import sync

    @app.task("work", max_attempts=5)
    def work() -> str:
        with app.sync_engine.begin() as connection:
            sync.request_cancel(connection, sync.current().job.id)
        if error is not None:
            raise error
        return "done"

    await run_one(engine, work, app)
    named = {"error": type(error).__name__} if "errors" in left else {}
    assert await rows(OUTCOME) == [USUAL | {"state": "cancelled"} | left | named]
    assert await rows("select expired from akadze.jobs") == [{"expired": False}]


async def test_an_expiry_does_not_stop_a_run_but_a_retry(engine: Engine, app: Akadze, rows: Rows) -> None:
    runs: list[int] = []

    @app.task("work", max_attempts=5, backoff=lambda attempt: timedelta(0))
    def work() -> None:
        runs.append(1)
        with app.sync_engine.begin() as connection:
            connection.exec_driver_sql("update akadze.jobs set expires_at = now()")
        raise ZeroDivisionError

    await run_one(engine, work, app, expires_at=datetime(2040, 1, 1, tzinfo=UTC))
    assert runs == [1]
    assert await rows("select state, expired, attempt, run_count from akadze.jobs") == [
        {"state": "cancelled", "expired": True, "attempt": 1, "run_count": 1}
    ]


async def test_a_job_that_expires_while_it_runs_may_succeed(engine: Engine, app: Akadze, rows: Rows) -> None:
    @app.task("work")
    def work() -> None:
        with app.sync_engine.begin() as connection:
            connection.exec_driver_sql("update akadze.jobs set expires_at = now() - interval '1 hour'")

    await run_one(engine, work, app)
    assert await rows("select state, expired from akadze.jobs") == [{"state": "succeeded", "expired": False}]


async def test_a_job_asked_to_cancel_before_its_start_has_no_run(engine: Engine, app: Akadze, rows: Rows) -> None:
    task = raising(app, AssertionError("it must not run"))
    async with engine.begin() as connection:
        await task.using(session=connection).enqueue()
    async with engine.begin() as connection:
        await request_cancel(connection, (await ids(rows))[0])
    await drain(app)
    assert await rows(OUTCOME) == [USUAL | {"state": "cancelled", "run_count": 0}]
