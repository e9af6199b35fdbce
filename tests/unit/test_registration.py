"""Contract, sections 1 and 3: registering tasks on an app."""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from akadze import Akadze, AkadzeError, EnqueueError
from akadze.task import Task


@pytest.fixture
def app() -> Akadze:
    return Akadze(database_url="postgresql://nobody@nowhere.invalid/none")


def plain(n: int) -> None: ...


async def coroutine(n: int) -> None: ...


def test_a_decorated_function_becomes_a_task_that_keeps_its_function_and_options(app: Akadze) -> None:
    def backoff(attempt: int) -> timedelta:
        return timedelta(0)

    task = app.task(
        "mail.send", queue="mail", max_attempts=6, timeout=timedelta(seconds=5), priority=-3, backoff=backoff
    )(coroutine)
    assert isinstance(task, Task)
    assert (task.name, task.queue, task.max_attempts, task.timeout, task.priority, task.backoff, task.fn) == (
        "mail.send",
        "mail",
        6,
        timedelta(seconds=5),
        -3,
        backoff,
        coroutine,
    )
    assert app.tasks == {"mail.send": task}
    assert "mail.send" in repr(task)


def test_the_defaults_of_a_task(app: Akadze) -> None:
    task = app.register(plain, name="t")
    assert (task.queue, task.max_attempts, task.timeout, task.priority, task.backoff) == ("default", 3, None, 0, None)


def test_a_task_knows_whether_it_is_awaited(app: Akadze) -> None:
    assert not app.register(plain, name="plain").is_async
    assert app.register(coroutine, name="coroutine").is_async
    assert app.register(functools.partial(coroutine, n=1), name="partial").is_async


def test_a_name_is_taken_once(app: Akadze) -> None:
    first = app.register(plain, name="t")
    for again in (lambda: app.register(coroutine, name="t"), lambda: app.task("t")(coroutine)):
        with pytest.raises(AkadzeError, match="task 't' is registered already"):
            again()
    assert app.tasks == {"t": first}


def test_a_decorator_without_a_name_is_refused(app: Akadze) -> None:
    for decorator in ("task", "periodic"):
        said = rf'a task\'s name must be a str, not a function: write @app\.{decorator}\("name"\) above it'
        with pytest.raises(AkadzeError, match=said):
            getattr(app, decorator)(plain)  # as @app.task is, where @app.task("name") was meant
    assert app.tasks == {}


def test_a_schedule_wants_the_name_of_the_task(app: Akadze) -> None:
    task = app.task("t")(plain)
    with pytest.raises(AkadzeError, match="a task's name must be a str, not a Task"):
        app.add_schedule(task, cron="0 0 * * *")


def test_a_task_that_is_called_says_what_to_write(app: Akadze) -> None:
    task = app.task("t")(plain)
    hint = r"write task\.using\(session=connection\)\.enqueue\(\.\.\.\), or task\.fn\(\.\.\.\) to call the function"
    for call in (lambda: task(1), lambda: task(n=1), lambda: task()):
        with pytest.raises(TypeError, match=hint):
            call()


def test_a_task_is_no_function_for_another_task(app: Akadze) -> None:
    task = app.task("t")(plain)
    with pytest.raises(AkadzeError, match=r"task 'u' is an object of type Task; the function of a task is task\.fn"):
        app.register(task, name="u")
    assert app.tasks == {"t": task}


def test_the_same_function_may_be_two_tasks(app: Akadze) -> None:
    app.register(plain, name="a", queue="one")
    app.register(plain, name="b", queue="two")
    assert sorted(app.tasks) == ["a", "b"]


def test_two_apps_may_have_tasks_of_the_same_name(app: Akadze) -> None:
    other = Akadze(database_url="postgresql://nobody@nowhere.invalid/none")
    assert app.register(plain, name="t").app is app
    assert other.register(plain, name="t").app is other


def generator(n: int) -> Iterator[int]:
    yield n


async def async_generator(n: int) -> AsyncIterator[int]:
    yield n


def with_unknown(n: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - on purpose


class Callable_:
    def __call__(self, *rest: int) -> None: ...


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda *args: None, r"\*args"),
        (lambda **kwargs: None, r"\*\*kwargs"),
        (lambda n, /: None, "by position only"),
        (generator, "generator"),
        (async_generator, "generator"),
        (with_unknown, "'n' cannot be resolved"),
        (Callable_(), r"\*rest"),
        (Callable_, "a class"),
        (7, "an object of type int"),
        (None, "NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_that_cannot_be_called_by_name_is_refused(app: Akadze, fn: Any, says: str) -> None:
    for register in (lambda: app.register(fn, name="t"), lambda: app.task("t")(fn)):
        with pytest.raises(AkadzeError, match=says) as raised:
            register()
        assert not isinstance(raised.value, EnqueueError)
        assert "'t'" in str(raised.value)
    assert app.tasks == {}


async def later(attempt: int) -> timedelta:
    return timedelta(0)


class Later:
    async def __call__(self, attempt: int) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""}, {"name": 7}, {"name": "a\0"}, {"name": "\ud800"}, {"name": "x" * 513}, {"name": None},
        {"queue": ""}, {"queue": 7}, {"queue": "a\0"}, {"queue": "\ud800"}, {"queue": "x" * 513},
        {"max_attempts": 0}, {"max_attempts": 2**31}, {"max_attempts": True}, {"max_attempts": 1.5},
        {"max_attempts": None}, {"priority": 32768}, {"priority": "1"}, {"priority": None}, {"timeout": 5},
        {"timeout": timedelta(0)}, {"timeout": timedelta(seconds=-1)}, {"backoff": timedelta(seconds=1)},
        {"backoff": later}, {"backoff": Later()}, {"backoff": functools.partial(later)},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused_and_nothing_is_registered(app: Akadze, options: dict[str, Any]) -> None:
    def body() -> None: ...

    given: dict[str, Any] = {"name": "t", **options}
    ways = [lambda: app.register(body, **given), lambda: app.task(**given)(body)]
    if "priority" not in options:  # that of periodic jobs is 0
        ways.append(lambda: app.periodic(**given, every=timedelta(minutes=1))(body))
    for way in ways:
        with pytest.raises(AkadzeError) as raised:
            way()
        assert not isinstance(raised.value, EnqueueError)
        assert app.tasks == {}
        assert app._schedules == []


def test_a_backoff_may_be_an_object_whose_call_is_plain(app: Akadze) -> None:
    class Curve:
        def __call__(self, attempt: int) -> timedelta:
            return timedelta(seconds=attempt)

    curve = Curve()
    assert app.register(plain, name="t", backoff=curve).backoff is curve


def test_a_timeout_of_a_plain_function_is_warned_of(app: Akadze, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="akadze.app"):
        app.register(coroutine, name="coroutine", timeout=timedelta(seconds=1))
        app.register(plain, name="plain")
        assert caplog.records == []
        app.register(plain, name="timed", timeout=timedelta(seconds=1))
    [record] = caplog.records
    assert (record.name, record.levelname) == ("akadze.app", "WARNING")
    assert "timed" in record.getMessage()
    assert "thread" in record.getMessage()


def test_include_imports_each_module_and_calls_its_register(
    app: Akadze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"included_{name}.py").write_text(
            f"def register(app):\n    app.register(lambda: None, name={name!r})\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    include: Any = app.include
    assert include("included_one", "included_two") is None
    assert sorted(app.tasks) == ["one", "two"]
    app.include()
    for name in ("one", "two"):
        sys.modules.pop(f"included_{name}")


@pytest.mark.parametrize("source", ["", "register = 7\n"])
def test_a_module_without_register_cannot_be_included(
    source: str, app: Akadze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "included_none.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AkadzeError, match="module 'included_none' has no register"):
        app.include("included_none")
    sys.modules.pop("included_none")


def test_an_error_of_an_included_module_comes_out_as_it_is(
    app: Akadze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "included_broken.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        app.include("included_broken")
    with pytest.raises(ModuleNotFoundError, match="included_nowhere"):
        app.include("included_nowhere")


@pytest.mark.parametrize(
    ("module", "named"),
    [(None, "None"), (5, "an int"), (sys, "a module"), (["a", "b"], "a list"), ("", "''"), (".tasks", "'.tasks'")],
)
def test_what_is_no_full_name_of_a_module_cannot_be_included(app: Akadze, module: Any, named: str) -> None:
    with pytest.raises(AkadzeError, match=rf"^a module to include is {re.escape(named)}: give its full name"):
        app.include("included_nowhere", module)


@pytest.mark.parametrize("call", ["enqueue", "enqueue_many", "delay", "apply_async"])
def test_a_call_that_lacks_the_session_is_told_where_it_goes(app: Akadze, call: str) -> None:
    task: Any = app.register(plain, name="plain")
    with pytest.raises(AttributeError, match=rf"no attribute '{call}': .*using\(session=.*\)\.enqueue"):
        getattr(task, call)
    assert not hasattr(task, call)
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = task.other
