"""Contract, section 1: the public names, their exact signatures, and that both colours have the same."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, get_type_hints

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

TASK = "queue='default', max_attempts=3, timeout=None"
SCHEDULE = "cron=None, every=None, overlap=True"
OPTIONS = (
    "delay=None, run_at=None, priority=None, max_attempts=None, unique_key=None, limit_key=None, expires_at=None,"
    " meta=None"
)
APP = (
    "(*, engine=None, sync_engine=None, database_url=None, pool_size=None, grace=datetime.timedelta(seconds=60),"
    " retention=datetime.timedelta(days=7))"
)
WORKER = (
    "(app, *, queues=None, slots=1, heartbeat_interval=datetime.timedelta(seconds=5),"
    " heartbeat_ttl=datetime.timedelta(seconds=30), poll_interval=datetime.timedelta(seconds=1),"
    " shutdown_timeout=datetime.timedelta(seconds=10), fair=False, notify=True)"
)
#: What the documentation says, without annotations and self.
SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (Akadze, APP),
    (Akadze.include, "(*modules)"),
    (Akadze.register, f"(fn, *, name, {TASK}, priority=0, backoff=None)"),
    (Akadze.task, f"(name, *, {TASK}, priority=0, backoff=None)"),
    (Akadze.periodic, f"(name, *, {SCHEDULE}, {TASK}, timezone=None, backoff=None)"),
    (Akadze.add_schedule, f"(name, *, {SCHEDULE}, queue=None, timezone=None)"),
    (Akadze.add_schedules, "(specs)"),
    (Akadze.aclose, "()"),
    (akadze.task.Task, "(app, name, fn, *, queue, max_attempts, timeout, priority, backoff=None)"),
    (akadze.task.Task.using, f"(*, session, {OPTIONS})"),
    (
        akadze.task.BoundTask,
        "(task, *, session, delay, run_at, priority, max_attempts, unique_key, limit_key, expires_at, meta=None)",
    ),
    (akadze.task.BoundTask.enqueue, "(*args, **kwargs)"),
    (akadze.task.BoundTask.enqueue_many, "(items)"),
    (akadze.context.Context, "(run)"),
    (akadze.context.Context.complete_tx, "()"),
    (akadze.Worker, WORKER),
    (akadze.Worker.serve, "(stop)"),
    (akadze.Retry, "(delay=None)"),
    (akadze.Snooze, "(delay)"),
    (akadze.Fail, "(reason='')"),
    (akadze.Cancel, "(reason='')"),
    (akadze.request_cancel, "(session, job_id)"),
    (akadze.requeue, "(session, job_id)"),
    (akadze.list_jobs, "(engine, *, queue=None, state=None, limit=50, meta=None)"),
    (akadze.queue_snapshot, "(engine)"),
    (akadze.pause_queue, "(session, queue)"),
    (akadze.resume_queue, "(session, queue)"),
    (akadze.set_limit, "(session, key, max_running=None, *, max_starts=None, window=None)"),
    (akadze.clear_limit, "(session, key)"),
    (akadze.list_limits, "(engine)"),
    (akadze.list_workers, "(engine)"),
    (akadze.migrate, "(database_url)"),
    (akadze.applied_versions, "(database_url)"),
    (akadze.current, "()"),
    (akadze.hooks.Hooks, "()"),
    (akadze.metrics.render_metrics, "(engine)"),
    (akadze.testing.drain, "(app, /, *, limit=1000, session=None)"),
    (akadze.testing.assert_enqueued, "(app, task, /, **arguments)"),
]
FIELDS = {
    akadze.JobSummary: "id task queue state priority attempt max_attempts run_at started_at finished_at meta",
    akadze.QueueSnapshot: "counts lag busy",
    akadze.StateCount: "queue state jobs",
    akadze.LimitSummary: "key max_running max_starts window",
    akadze.WorkerSummary: "id hostname pid queues started_at heartbeat_at",
    akadze.job.Job: (
        "id task queue priority state args run_count attempt max_attempts snoozes unique_key limit_key worker_id errors"
        " result cancel_requested_at expires_at expired meta"
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


@pytest.mark.parametrize(("function", "documented"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_a_signature_is_the_documented_one(function: Callable[..., Any], documented: str) -> None:
    assert shown(function) == documented


@pytest.mark.parametrize(("kind", "documented"), FIELDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_dataclass_has_the_documented_fields_and_is_frozen(kind: type, documented: str) -> None:
    assert dataclasses.is_dataclass(kind)
    assert " ".join(field.name for field in dataclasses.fields(kind)) == documented
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # what the decorator was given
    assert [name for name in documented.split() if name not in get_type_hints(kind)] == []


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
