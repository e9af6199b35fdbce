"""Contract, section 11: hooks, where they run and what their errors do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, AkadzeError, Cancel, Fail, Retry, Snooze, request_cancel
from akadze.job import Job
from akadze.testing import drain

from .conftest import Engine, Rows
from .table import ids, numbers, states

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note", queue="notes", priority=3, max_attempts=5)
    def note(n: int) -> int:
        return n

    return note


async def test_on_enqueue_sees_the_whole_job(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []
    app.hooks.on_enqueue.append(lambda connection, job: seen.append((connection, job)))
    until = datetime(2040, 1, 1, tzinfo=UTC)
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u", limit_key="k", meta={"a": [1]}, expires_at=until).enqueue(
            n=1
        )
        here = connection
    [job_id] = await ids(rows)
    assert seen == [
        (
            here,
            Job(
                id=job_id,
                task="note",
                queue="notes",
                priority=3,
                state="queued",
                args={"n": 1},
                run_count=0,
                attempt=0,
                max_attempts=5,
                snoozes=0,
                unique_key="u",
                limit_key="k",
                worker_id=None,
                errors=[],
                result=None,
                cancel_requested_at=None,
                expires_at=until,
                expired=False,
                meta={"a": [1]},
            ),
        )
    ]
    assert "'n'" not in repr(seen[0][1])


async def test_hooks_are_called_in_the_order_of_the_list(engine: Engine, note: Any, app: Akadze) -> None:
    seen: list[Any] = []
    for name in ("first", "second"):
        app.hooks.on_enqueue.append(lambda connection, job, name=name: seen.append((job.args["n"], name)))
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}])
    assert seen == [(1, "first"), (1, "second"), (2, "first"), (2, "second")]


async def test_the_making_of_a_job_is_no_transition(engine: Engine, note: Any, app: Akadze) -> None:
    seen: list[Any] = []
    app.hooks.on_transition.append(lambda *arguments: seen.append(arguments))
    async with engine.begin() as connection:
        await note.using(session=connection, unique_key="u").enqueue(n=1)
        await note.using(session=connection).enqueue_many([{"n": 2}])
    assert seen == []


async def test_an_error_of_on_enqueue_comes_out_as_it_is_and_leaves_no_row(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    def refuse(connection: Any, job: Job) -> None:
        raise ZeroDivisionError("not this one")

    app.hooks.on_enqueue.append(refuse)
    async with engine.begin() as connection:
        with pytest.raises(ZeroDivisionError, match="not this one"):
            await note.using(session=connection).enqueue(n=1)
        with pytest.raises(ZeroDivisionError, match="not this one"):
            await note.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}])
        app.hooks.on_enqueue.clear()
        await note.using(session=connection).enqueue(n=3)
    assert await numbers(rows) == [3]


async def test_a_hook_may_enqueue_on_the_connection_that_it_is_given(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    async def follow(connection: Any, job: Job) -> None:
        if job.args["n"] < 3:
            await note.using(session=connection).enqueue(n=job.args["n"] + 1)

    app.hooks.on_enqueue.append(follow)
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
    assert await numbers(rows) == [1, 2, 3]


async def test_a_run_is_surrounded_by_its_hooks(engine: Engine, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []

    @app.task("work")
    def work() -> str:
        seen.append("body")
        return "done"

    app.hooks.before_run.append(lambda job: seen.append(("before", job.state, job.run_count)))
    app.hooks.after_run.append(lambda job: seen.append(("after", job.state, job.result)))
    app.hooks.on_transition.append(lambda connection, job, before, after: seen.append((before, after, job.state)))
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue()
    await drain(app)
    assert seen == [
        ("queued", "running", "running"),
        ("before", "running", 1),
        "body",
        ("after", "running", None),
        ("running", "succeeded", "succeeded"),
    ]


async def test_on_transition_sees_the_job_as_it_has_become(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []

    async def look(connection: Any, job: Job, before: str, after: str) -> None:
        result = await connection.execute(text("select state from akadze.jobs"))
        seen.append((before, after, job.state, result.scalar(), job.result, job.worker_id is not None, job.run_count))

    app.hooks.on_transition.append(look)
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=7)
    await drain(app)
    assert seen == [
        ("queued", "running", "running", "running", None, True, 1),
        ("running", "succeeded", "succeeded", "succeeded", 7, False, 1),
    ]


async def test_after_run_is_called_only_when_the_body_has_returned(engine: Engine, app: Akadze, rows: Rows) -> None:
    seen: list[Any] = []
    ends: dict[str, Any] = {
        "error": ZeroDivisionError(),
        "retry": Retry(timedelta(hours=1)),
        "snooze": Snooze(timedelta(hours=1)),
        "fail": Fail("no"),
        "cancel": Cancel("no"),
    }

    @app.task("work", max_attempts=1)
    def work(how: str) -> None:
        if how in ends:
            raise ends[how]

    app.hooks.before_run.append(lambda job: seen.append(("before", job.args["how"])))
    app.hooks.after_run.append(lambda job: seen.append(("after", job.args["how"])))
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue_many({"how": how} for how in [*ends, "return"])
    await drain(app)
    assert [how for moment, how in seen if moment == "before"] == [*ends, "return"]
    assert [how for moment, how in seen if moment == "after"] == ["return"]
    assert await states(rows) == ["failed", "failed", "queued", "failed", "cancelled", "succeeded"]


@pytest.mark.parametrize("moment", ["before_run", "after_run"])
async def test_an_error_of_a_run_s_hook_is_an_error_of_the_run(
    moment: str, engine: Engine, app: Akadze, rows: Rows
) -> None:
    bodies: list[int] = []

    def refuse(job: Job) -> None:
        raise ZeroDivisionError("of the hook")

    @app.task("work", max_attempts=1)
    def work() -> None:
        bodies.append(1)

    getattr(app.hooks, moment).append(refuse)
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue()
    await drain(app)
    assert await rows(
        "select state, attempt, errors -> 0 ->> 'error' as error, errors -> 0 ->> 'message' as message from akadze.jobs"
    ) == [{"state": "failed", "attempt": 1, "error": "ZeroDivisionError", "message": "of the hook"}]
    assert len(bodies) == (1 if moment == "after_run" else 0)


async def test_on_transition_is_told_of_every_way_out_of_running(engine: Engine, app: Akadze) -> None:
    seen: list[Any] = []
    ends: dict[str, Any] = {
        "error": ZeroDivisionError(),
        "retry": Retry(timedelta(hours=1)),
        "snooze": Snooze(timedelta(hours=1)),
        "fail": Fail("no"),
        "cancel": Cancel("no"),
        "return": None,
    }

    @app.task("work", backoff=lambda attempt: timedelta(hours=1))
    def work(how: str) -> None:
        if ends[how] is not None:
            raise ends[how]

    app.hooks.on_transition.append(lambda connection, job, before, after: seen.append((job.args["how"], before, after)))
    async with engine.begin() as connection:
        await work.using(session=connection).enqueue_many({"how": how} for how in ends)
    await drain(app)
    assert [entry for entry in seen if entry[1] == "queued"] == [(how, "queued", "running") for how in ends]
    assert [entry for entry in seen if entry[1] == "running"] == [
        ("error", "running", "queued"),
        ("retry", "running", "queued"),
        ("snooze", "running", "queued"),
        ("fail", "running", "failed"),
        ("cancel", "running", "cancelled"),
        ("return", "running", "succeeded"),
    ]


async def test_on_transition_is_told_of_a_cancel_and_of_an_expiry(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    seen: list[Any] = []
    async with engine.begin() as connection:
        await note.using(session=connection, expires_at=PAST).enqueue(n=1)
        await note.using(session=connection).enqueue(n=2)
    async with engine.begin() as connection:
        await request_cancel(connection, (await ids(rows))[1])
    app.hooks.on_transition.append(
        lambda connection, job, before, after: seen.append((job.args["n"], before, after, job.expired))
    )
    await drain(app)
    assert sorted(seen) == [(1, "queued", "cancelled", True), (2, "queued", "cancelled", False)]


async def test_what_a_hook_writes_commits_with_the_transition(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    async def keep(connection: Any, job: Job, before: str, after: str) -> None:
        await connection.execute(text("insert into akadze.queue_pauses (queue) values (:queue)"), {"queue": after})

    app.hooks.on_transition.append(keep)
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue(n=1)
    await drain(app)
    assert await rows("select queue from akadze.queue_pauses order by queue") == [
        {"queue": "running"},
        {"queue": "succeeded"},
    ]


async def test_a_refusal_of_a_start_hurts_its_own_job_only(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    async def refuse(connection: Any, job: Job, before: str, after: str) -> None:
        if job.args["n"] == 1 and after == "running":
            await connection.execute(text("select 1 / 0"))

    app.hooks.on_transition.append(refuse)
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}])
    await drain(app)
    assert await rows(
        "select args -> 'n' as n, state, run_count, attempt, errors, worker_id from akadze.jobs order by id"
    ) == [
        {"n": 1, "state": "queued", "run_count": 0, "attempt": 0, "errors": [], "worker_id": None},
        {"n": 2, "state": "succeeded", "run_count": 1, "attempt": 0, "errors": [], "worker_id": None},
    ]


async def test_a_refusal_of_a_cancel_hurts_its_own_job_only(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
    def refuse(connection: Any, job: Job, before: str, after: str) -> None:
        if job.args["n"] == 1:
            raise ZeroDivisionError

    app.hooks.on_transition.append(refuse)
    async with engine.begin() as connection:
        await note.using(session=connection, expires_at=PAST).enqueue_many([{"n": 1}, {"n": 2}])
    with pytest.raises(AkadzeError, match="still ready"):  # a worker would look at it again and again
        await drain(app, limit=3)
    assert await states(rows) == ["queued", "cancelled"]


async def test_a_refusal_of_an_outcome_leaves_its_own_job_running(
    engine: Engine, note: Any, app: Akadze, rows: Rows
) -> None:
    async def refuse(connection: Any, job: Job, before: str, after: str) -> None:
        if job.args["n"] == 1 and after == "succeeded":
            await connection.execute(text("select 1 / 0"))

    app.hooks.on_transition.append(refuse)
    async with engine.begin() as connection:
        await note.using(session=connection).enqueue_many([{"n": 1}, {"n": 2}])
    await drain(app)
    assert await rows("select state, result, run_count, attempt from akadze.jobs order by id") == [
        {"state": "running", "result": None, "run_count": 1, "attempt": 0},
        {"state": "succeeded", "result": 2, "run_count": 1, "attempt": 0},
    ]


if True:  # ASYNC

    async def test_hooks_may_be_coroutine_functions(engine: Engine, note: Any, app: Akadze, rows: Rows) -> None:
        seen: list[str] = []

        async def told(*arguments: Any) -> None:
            seen.append(type(arguments[0]).__name__ if len(arguments) == 1 else str(len(arguments)))

        class Told:
            async def __call__(self, *arguments: Any) -> None:
                await told(*arguments)

        for hooks in (app.hooks.on_enqueue, app.hooks.before_run, app.hooks.after_run, app.hooks.on_transition):
            hooks.append(told)
            hooks.append(Told())
        async with engine.begin() as connection:
            await note.using(session=connection).enqueue(n=1)
        await drain(app)
        assert seen == ["2", "2", "4", "4", "Job", "Job", "Job", "Job", "4", "4"]
