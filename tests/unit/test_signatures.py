"""Contract, section 1: the public names, their exact signatures, and that both colours have the same."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, get_overloads, get_type_hints

import pytest
from pydantic import TypeAdapter

import akadze
import akadze.context
import akadze.errors
import akadze.hooks
import akadze.job
import akadze.metrics
import akadze.sync
import akadze.sync.metrics
import akadze.sync.testing
import akadze.task
import akadze.testing
from akadze import Akadze

#: What stands for every session, open connection, engine and pool that a call takes; the documentation names one kind.
SESSIONS = {"AnyAsyncSession": "AsyncConnection | AsyncSession", "AnyAsyncSource": "AsyncEngine"}
TASK = "queue: str = 'default', max_attempts: int = 3, timeout: timedelta | None = None"
SCHEDULE = "cron: str | None = None, every: timedelta | None = None, overlap: bool = True"
BACKOFF = "backoff: BackoffPolicy | None = None"
META = "meta: Mapping[str, Any] | None = None"
OPTIONS = (
    "delay: timedelta | None = None, run_at: datetime | None = None, priority: int | None = None,"
    " max_attempts: int | None = None, unique_key: str | None = None, limit_key: str | None = None,"
    f" expires_at: datetime | None = None, {META}"
)
BOUND = (
    "delay: timedelta | None, run_at: datetime | None, priority: int, max_attempts: int, unique_key: str | None,"
    f" limit_key: str | None, expires_at: datetime | None, {META}"
)
APP = (
    "(*, engine: AsyncEngine | None = None, sync_engine: Engine | None = None,"
    " database_url: str | Callable[[], str] | None = None, pool_size: int | None = None,"
    " grace: timedelta = datetime.timedelta(seconds=60), retention: timedelta = datetime.timedelta(days=7)) -> None"
)
WORKER = (
    "(app: Akadze, *, queues: list[str] | None = None, slots: int = 1,"
    " heartbeat_interval: timedelta = datetime.timedelta(seconds=5),"
    " heartbeat_ttl: timedelta = datetime.timedelta(seconds=30),"
    " poll_interval: timedelta = datetime.timedelta(seconds=1),"
    " shutdown_timeout: timedelta = datetime.timedelta(seconds=10), fair: bool = False, notify: bool = True) -> None"
)
SESSION = "session: AsyncConnection | AsyncSession"
ENGINE = "engine: AsyncEngine"
#: What the documentation says, without self.
SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (Akadze, APP),
    (Akadze.include, "(*modules: str) -> None"),
    (Akadze.register, f"(fn: Callable[P, Any], *, name: str, {TASK}, priority: int = 0, {BACKOFF}) -> Task[P]"),
    (Akadze.task, f"(name: str, *, {TASK}, priority: int = 0, {BACKOFF}) -> Callable[[Callable[P, Any]], Task[P]]"),
    (
        Akadze.periodic,
        (
            f"(name: str, *, {SCHEDULE}, {TASK}, timezone: str | None = None, {BACKOFF})"
            " -> Callable[[Callable[..., Any]], Task[Any]]"
        ),
    ),
    (
        Akadze.add_schedule,
        f"(name: str, *, {SCHEDULE}, queue: str | None = None, timezone: str | None = None) -> None",
    ),
    (Akadze.add_schedules, "(specs: Sequence[ScheduleSpec | Mapping[str, object]]) -> None"),
    (Akadze.aclose, "() -> None"),
    (
        akadze.task.Task,
        (
            "(app: Akadze, name: str, fn: Callable[P, Any], *, queue: str, max_attempts: int,"
            f" timeout: timedelta | None, priority: int, {BACKOFF}) -> None"
        ),
    ),
    (akadze.task.BoundTask, f"(task: Task[P], *, {SESSION}, {BOUND}) -> None"),
    (akadze.task.BoundTask.enqueue, "(*args: P.args, **kwargs: P.kwargs) -> None"),
    (akadze.task.BoundTask.enqueue_many, "(items: Iterable[Mapping[str, Any]]) -> None"),
    (akadze.context.Context, "(run: Run) -> None"),
    (akadze.context.Context.complete_tx, "() -> AbstractAsyncContextManager[AsyncConnection]"),
    (akadze.Worker, WORKER),
    (akadze.Worker.serve, "(stop: asyncio.Event) -> None"),
    (akadze.Retry, "(delay: timedelta | None = None) -> None"),
    (akadze.Snooze, "(delay: timedelta) -> None"),
    (akadze.Fail, "(reason: str = '') -> None"),
    (akadze.Cancel, "(reason: str = '') -> None"),
    (akadze.request_cancel, f"({SESSION}, job_id: int) -> None"),
    (akadze.requeue, f"({SESSION}, job_id: int) -> None"),
    (
        akadze.list_jobs,
        (
            f"({ENGINE}, *, queue: str | None = None, state: str | None = None, limit: int = 50, {META})"
            " -> tuple[JobSummary, ...]"
        ),
    ),
    (akadze.queue_snapshot, f"({ENGINE}) -> QueueSnapshot"),
    (akadze.pause_queue, f"({SESSION}, queue: str) -> None"),
    (akadze.resume_queue, f"({SESSION}, queue: str) -> None"),
    (
        akadze.set_limit,
        (
            f"({SESSION}, key: str, max_running: int | None = None, *, max_starts: int | None = None,"
            " window: timedelta | None = None) -> None"
        ),
    ),
    (akadze.clear_limit, f"({SESSION}, key: str) -> None"),
    (akadze.list_limits, f"({ENGINE}) -> tuple[LimitSummary, ...]"),
    (akadze.list_workers, f"({ENGINE}) -> tuple[WorkerSummary, ...]"),
    (akadze.migrate, "(database_url: str) -> None"),
    (akadze.applied_versions, "(database_url: str) -> list[str]"),
    (akadze.current, "() -> Context"),
    (akadze.hooks.Hooks, "() -> None"),
    (akadze.metrics.render_metrics, f"({ENGINE}) -> str"),
    (akadze.testing.drain, f"(app: Akadze, /, *, limit: int = 1000, {SESSION} | None = None) -> None"),
    (akadze.testing.assert_enqueued, "(app: Akadze, task: str | Task[Any], /, **arguments: Any) -> None"),
]
COROUTINES = {
    "BoundTask.enqueue", "BoundTask.enqueue_many", "Akadze.aclose", "Worker.serve", "applied_versions",
    "assert_enqueued", "clear_limit", "drain", "list_jobs", "list_limits", "list_workers", "migrate", "pause_queue",
    "queue_snapshot", "render_metrics", "request_cancel", "requeue", "resume_queue", "set_limit",
}  # fmt: skip
FIELDS = {
    akadze.JobSummary: (
        "id: int, task: str, queue: str, state: str, priority: int, attempt: int, max_attempts: int, run_at: datetime,"
        " started_at: datetime | None, finished_at: datetime | None, meta: Mapping[str, Any] = mappingproxy({})"
    ),
    akadze.QueueSnapshot: "counts: tuple[StateCount, ...], lag: timedelta | None, busy: int",
    akadze.StateCount: "queue: str, state: str, jobs: int",
    akadze.LimitSummary: "key: str, max_running: int | None, max_starts: int | None, window: timedelta | None",
    akadze.WorkerSummary: (
        "id: UUID, hostname: str, pid: int, queues: tuple[str, ...], started_at: datetime, heartbeat_at: datetime"
    ),
    akadze.job.Job: (
        "id: int, task: str, queue: str, priority: int, state: str, args: dict[str, Any], run_count: int, attempt: int,"
        " max_attempts: int, snoozes: int, unique_key: str | None, limit_key: str | None, worker_id: UUID | None,"
        " errors: list[dict[str, str]], result: Any, cancel_requested_at: datetime | None,"
        " expires_at: datetime | None, expired: bool = False, meta: dict[str, Any] = {}"
    ),
}
DOCUMENTED = {
    "Akadze", "AkadzeError", "BackoffPolicy", "Cancel", "DuplicateJob", "EnqueueError", "Fail", "JobSummary",
    "LimitSummary", "QueueSnapshot", "Retry", "ScheduleSpec", "Snooze", "StateCount", "Worker", "WorkerSummary",
    "__version__", "applied_versions", "clear_limit", "current", "list_jobs", "list_limits", "list_workers", "migrate",
    "pause_queue", "queue_snapshot", "request_cancel", "requeue", "resume_queue", "set_limit",
}  # fmt: skip


def shown(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class Words:
    """An annotation that is shown as it was written."""

    def __init__(self, words: object) -> None:
        self.words = words if isinstance(words, str) else inspect.formatannotation(words)

    def __repr__(self) -> str:
        return self.words


def shown_with_types(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=Words(parameter.annotation))
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=Words(signature.return_annotation)))
    for name, documented in SESSIONS.items():
        text = text.replace(name, documented)
    return text


def shown_fields(kind: Any) -> str:
    """Return the fields of a dataclass with their types and defaults, without the modules of the types."""
    fields = []
    for field in dataclasses.fields(kind):
        text = f"{field.name}: {inspect.formatannotation(get_type_hints(kind)[field.name])}"
        if field.default_factory is not dataclasses.MISSING:
            text += f" = {field.default_factory()!r}"
        elif field.default is not dataclasses.MISSING:
            text += f" = {field.default!r}"
        fields.append(re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", text))
    return ", ".join(fields)


@pytest.mark.parametrize(("function", "documented"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_a_signature_is_the_documented_one(function: Callable[..., Any], documented: str) -> None:
    assert shown_with_types(function) == documented


def test_using_takes_the_documented_options_in_both_colours_and_binds_the_task() -> None:
    assert [shown_with_types(one) for one in get_overloads(akadze.task.Task.using)] == [
        f"(*, {SESSION}, {OPTIONS}) -> BoundTask[P]",
        f"(*, session: AnySyncSession, {OPTIONS}) -> SyncBoundTask[P]",
    ]
    assert (
        shown_with_types(akadze.task.Task.using) == f"(*, session: Any, {OPTIONS}) -> BoundTask[P] | SyncBoundTask[P]"
    )


def test_the_documented_calls_are_awaited_and_no_others() -> None:
    assert {one.__qualname__ for one, _ in SIGNATURES if inspect.iscoroutinefunction(one)} == COROUTINES


@pytest.mark.parametrize(("kind", "documented"), FIELDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_dataclass_has_the_documented_fields_and_is_frozen(kind: type, documented: str) -> None:
    assert dataclasses.is_dataclass(kind)
    assert shown_fields(kind) == documented
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # what the decorator was given


def test_the_documented_names_are_there() -> None:
    assert set(akadze.__all__) >= DOCUMENTED


def test_meta_is_the_only_field_of_a_summary_with_a_default_and_is_left_out_of_its_hash() -> None:
    job = akadze.JobSummary(1, "t", "q", "queued", 0, 0, 3, datetime(2030, 1, 1, tzinfo=UTC), None, None)
    assert job.meta == MappingProxyType({})
    assert isinstance(job.meta, MappingProxyType)
    assert hash(job) == hash(dataclasses.replace(job, meta={"a": []}))


def test_a_job_without_expired_and_meta_has_not_expired_and_no_meta() -> None:
    job = akadze.job.Job(1, "t", "q", 0, "queued", {}, 0, 0, 3, 0, None, None, None, [], None, None, None)
    assert (job.expired, job.meta) == (False, {})


@pytest.mark.parametrize("kind", [*FIELDS, akadze.ScheduleSpec], ids=lambda kind: kind.__name__)
def test_pydantic_takes_a_public_dataclass_in_an_answer_of_an_api(kind: type) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    assert list(TypeAdapter(list[kind]).json_schema()["$defs"][kind.__name__]["properties"]) == names  # type: ignore[valid-type]  # a class as a value


def test_a_summary_is_written_and_read_as_json() -> None:
    adapter = TypeAdapter(akadze.JobSummary)
    job = akadze.JobSummary(1, "t", "q", "queued", 0, 0, 3, datetime(2030, 1, 1, tzinfo=UTC), None, None, {"a": [1]})
    assert adapter.validate_json(adapter.dump_json(job)) == job


def test_the_errors_are_a_line_of_ancestors() -> None:
    assert akadze.DuplicateJob.__bases__ == (akadze.EnqueueError,)
    assert akadze.EnqueueError.__bases__ == (akadze.AkadzeError,)
    assert akadze.AkadzeError.__bases__ == (Exception,)
    for outcome in (akadze.Retry, akadze.Snooze, akadze.Fail, akadze.Cancel):
        assert outcome.__bases__ == (Exception,)


def test_an_outcome_keeps_its_delay_or_reason_and_refuses_what_is_no_delay() -> None:
    second = timedelta(seconds=1)
    assert [akadze.Retry().delay, akadze.Retry(second).delay, akadze.Snooze(second).delay] == [None, second, second]
    assert [akadze.Fail().reason, akadze.Fail("a").reason, akadze.Cancel("b").reason] == ["", "a", "b"]
    for wrong in (lambda: akadze.Retry(5), lambda: akadze.Snooze("1"), lambda: akadze.Snooze(None)):  # type: ignore[arg-type]  # on purpose
        with pytest.raises(TypeError, match="delay must be a timedelta"):
            wrong()


def test_hooks_are_lists() -> None:
    hooks = akadze.hooks.Hooks()
    assert (hooks.on_enqueue, hooks.before_run, hooks.after_run, hooks.on_transition) == ([], [], [], [])


# Both colours


def pairs() -> list[Any]:
    modules = [(akadze, akadze.sync), (akadze.testing, akadze.sync.testing), (akadze.metrics, akadze.sync.metrics)]
    return [
        pytest.param(getattr(one, name), getattr(other, name), id=f"{other.__name__}.{name}")
        for one, other in modules
        for name in other.__all__
    ]


@pytest.mark.parametrize(("one", "other"), pairs())
def test_both_colours_of_a_call_are_alike(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    if one is akadze.current:
        assert shown(one) == shown(other)
    else:
        # Parameters, defaults, annotations and results; only the kind of session has the colour in its name.
        assert str(inspect.signature(one)).replace("AnyAsync", "AnySync") == str(inspect.signature(other))
        assert inspect.iscoroutinefunction(one)
    assert not inspect.iscoroutinefunction(other)
    assert one.__doc__
    assert other.__doc__
    assert one.__name__.removeprefix("sync_") == other.__name__.removeprefix("sync_")


def test_every_call_has_both_colours() -> None:
    calls = {name for name in akadze.__all__ if inspect.isfunction(getattr(akadze, name))}
    assert set(akadze.sync.__all__) == calls
    assert akadze.sync.testing.__all__ == akadze.testing.__all__ == ["assert_enqueued", "drain"]
    assert akadze.sync.metrics.__all__ == akadze.metrics.__all__ == ["render_metrics"]


def test_both_bound_tasks_are_alike() -> None:
    one, other = akadze.task.BoundTask, akadze.task.SyncBoundTask
    assert shown(one) == shown(other)
    public = [name for name in vars(one) if not name.startswith("_")]
    assert public == [name for name in vars(other) if not name.startswith("_")] == ["enqueue", "enqueue_many"]
    for name in public:
        assert inspect.signature(getattr(one, name)) == inspect.signature(getattr(other, name))
        assert inspect.iscoroutinefunction(getattr(one, name))
        assert not inspect.iscoroutinefunction(getattr(other, name))


def test_both_contexts_are_alike() -> None:
    one, other = akadze.context.Context, akadze.context.SyncContext
    assert [name for name in vars(one) if not name.startswith("_")] == ["job", "complete_tx"]
    assert [name for name in vars(other) if not name.startswith("_")] == ["job", "complete_tx"]
    assert shown(one.complete_tx) == shown(other.complete_tx)


@pytest.mark.parametrize("name", sorted(DOCUMENTED - {"BackoffPolicy", "__version__"}))
def test_a_public_class_says_where_it_is_imported_from(name: str) -> None:
    public = getattr(akadze, name)
    if inspect.isclass(public):
        assert public.__module__ == "akadze"
    assert public.__doc__
