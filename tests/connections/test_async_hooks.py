"""Contract, section 11: async hooks where nothing can be awaited."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from akadze import Akadze, AkadzeError, EnqueueError, sync
from akadze.sync.testing import drain
from tests.coroutines import coroutine_task


async def told(*arguments: Any) -> None: ...


class Told:
    async def __call__(self, *arguments: Any) -> None: ...


class Told2:
    async def told(self, *arguments: Any) -> None: ...


HOOKS: dict[str, tuple[Callable[..., Any], str]] = {
    "function": (told, "told"),
    "object": (Told(), "Told"),
    "method": (Told2().told, "Told2.told"),
    "partial": (functools.partial(told), "partial"),
}


@pytest.fixture(params=HOOKS)
def hook(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], str]:
    return HOOKS[request.param]


@pytest.fixture
def note(app: Akadze) -> Any:
    @app.task("note", max_attempts=1)
    def note(complete: bool = False) -> None:
        if complete:
            with sync.current().complete_tx():
                pass

    return note


def states(app: Akadze) -> list[str]:
    with app.sync_engine.connect() as connection:
        return [state for (state,) in connection.execute(text("select state from akadze.jobs order by id"))]


def test_a_blocking_enqueue_refuses_an_async_on_enqueue_hook_before_there_is_a_row(
    app: Akadze, note: Any, hook: tuple[Callable[..., Any], str]
) -> None:
    seen: list[Any] = []
    app.hooks.on_enqueue += [lambda connection, job: seen.append(job), hook[0]]
    with app.sync_engine.begin() as connection:
        for enqueue in (
            lambda: note.using(session=connection).enqueue(),
            lambda: note.using(session=connection, unique_key="u").enqueue(),
            lambda: note.using(session=connection).enqueue_many([{}, {}]),
        ):
            with pytest.raises(EnqueueError, match=f"the on_enqueue hook {hook[1]} is async"):
                enqueue()
        app.hooks.on_enqueue.clear()
        note.using(session=connection).enqueue()
    assert states(app) == ["queued"]
    assert seen == []


def test_a_blocking_enqueue_refuses_an_async_on_transition_hook_where_it_might_be_needed(
    app: Akadze, note: Any, hook: tuple[Callable[..., Any], str]
) -> None:
    app.hooks.on_transition.append(hook[0])
    with app.sync_engine.begin() as connection:
        with pytest.raises(EnqueueError, match=f"the on_transition hook {hook[1]} is async"):
            note.using(session=connection, unique_key="u").enqueue()
        note.using(session=connection).enqueue()
    assert states(app) == ["queued"]


def test_a_blocking_drain_refuses_an_async_on_transition_hook(
    app: Akadze, note: Any, hook: tuple[Callable[..., Any], str]
) -> None:
    with app.sync_engine.begin() as connection:
        note.using(session=connection).enqueue()
    app.hooks.on_transition.append(hook[0])
    with pytest.raises(
        AkadzeError, match=f"{hook[1]} is async, but this drain is blocking.*akadze.testing.drain"
    ) as raised:
        drain(app)
    assert not isinstance(raised.value, EnqueueError)
    assert states(app) == ["queued"]


def test_a_plain_function_that_returns_something_to_await_is_refused_and_its_job_is_not_there(
    app: Akadze, note: Any
) -> None:
    app.hooks.on_enqueue.append(lambda connection, job: told())
    with app.sync_engine.begin() as connection:
        with pytest.raises(AkadzeError, match="is async"):
            note.using(session=connection).enqueue()
        connection.execute(text("select 1"))
    assert states(app) == []


def test_a_blocking_drain_awaits_the_hooks_of_a_run_on_a_loop_of_its_own(app: Akadze, note: Any) -> None:
    seen: list[str] = []

    async def before(job: Any) -> None:
        seen.append("before")

    async def after(job: Any) -> None:
        seen.append("after")

    coroutine = coroutine_task(app, [])
    app.hooks.before_run.append(before)
    app.hooks.after_run.append(after)
    with app.sync_engine.begin() as connection:
        note.using(session=connection).enqueue()
        coroutine.using(session=connection).enqueue()
    drain(app)
    assert seen == ["before", "after"] * 2
    assert states(app) == ["succeeded", "succeeded"]


async def test_complete_tx_of_a_plain_function_refuses_an_async_on_transition_hook(app: Akadze, note: Any) -> None:
    import akadze.testing

    async with app.engine.begin() as connection:
        await note.using(session=connection).enqueue(complete=True)
    app.hooks.on_transition.append(told)
    await akadze.testing.drain(app)
    assert states(app) == ["failed"]
    with app.sync_engine.connect() as blocking:
        [(error,)] = blocking.execute(text("select errors -> 0 from akadze.jobs")).all()
    assert error["error"] == "AkadzeError"
    assert "complete_tx of a plain function is blocking" in error["message"]


async def test_blocking_calls_inside_a_running_loop_work(app: Akadze, note: Any) -> None:
    ran: list[int] = []
    coroutine = coroutine_task(app, ran)
    with app.sync_engine.begin() as connection:
        note.using(session=connection).enqueue()
        coroutine.using(session=connection).enqueue(n=1)
    drain(app)
    assert ran == [1]
    assert states(app) == ["succeeded", "succeeded"]
