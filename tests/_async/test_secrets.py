"""Contract, section 15: nothing logs arguments, results or what an exception says."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, Fail, Retry
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import states

SECRET = "s3cret-of-the-user"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="akadze")
    return caplog


async def test_a_run_however_it_ends_leaves_no_secret_in_the_log(
    engine: Engine, app: Akadze, rows: Rows, logged: pytest.LogCaptureFixture
) -> None:
    ends: dict[str, Any] = {
        "error": ValueError(SECRET),
        "cause": ValueError("outer"),
        "fail": Fail(SECRET),
        "retry": Retry(timedelta(hours=1)),
    }
    ends["cause"].__cause__ = KeyError(SECRET)

    @app.task("work", max_attempts=1)
    def work(how: str, password: str) -> str:
        if how in ends:
            raise ends[how]
        if how == "bad result":
            return SECRET + "\0"
        return SECRET

    async with engine.begin() as connection:
        await work.using(session=connection).enqueue_many(
            {"how": how, "password": SECRET} for how in [*ends, "bad result", "return"]
        )
    await rows(
        "insert into akadze.jobs (task, args, max_attempts)"
        " values ('work', jsonb_build_object('how', 7, 'password', cast(:secret as text)), 1)",
        secret=SECRET,
    )
    await drain(app)
    assert await states(rows) == ["failed", "failed", "failed", "failed", "failed", "succeeded", "failed"]
    assert SECRET not in logged.text
    assert "job" in logged.text


@pytest.mark.parametrize("how", ["in a message", "in a statement", "as a value"])
async def test_a_hook_that_raises_leaves_no_arguments_in_the_log(
    how: str, engine: Engine, app: Akadze, rows: Rows, logged: pytest.LogCaptureFixture
) -> None:
    async def refuse(connection: Any, job: Any, before: str, after: str) -> None:
        if how == "in a message":
            raise ZeroDivisionError(f"{job!r} {job.args} {job.unique_key}")
        wrong = "select 1 / 0, :value" if how == "in a statement" else "select cast(:value as integer)"
        await connection.execute(text(wrong), {"value": job.args["password"]})

    @app.task("work")
    def work(password: str) -> None: ...

    async with engine.begin() as connection:
        await work.using(session=connection, meta={"m": SECRET}, unique_key=SECRET).enqueue(password=SECRET)
    app.hooks.on_transition.append(refuse)
    await drain(app)
    assert SECRET not in logged.text
    assert "an on_transition hook refused its start: the hook raised" in logged.text
    assert "in refuse" in logged.text
