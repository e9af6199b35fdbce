"""Contract, section 10: schedules without a database: their checks, and which slots are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from akadze import Akadze, AkadzeError, ScheduleSpec
from akadze._cron import Cron, Every
from akadze._schedules import Schedule, due, make_schedule, next_due, read_spec

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def make(name: str = "report", **options: Any) -> Schedule:
    defaults: dict[str, Any] = {"cron": None, "every": None, "overlap": True, "queue": None, "timezone": None}
    return make_schedule(name, **{**defaults, **options}, default_queue="default")


@pytest.fixture
def app() -> Akadze:
    app = Akadze(database_url="postgresql://localhost/unused")
    app.register(lambda: None, name="known", queue="reports")
    return app


# Checks.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "neither cron nor every is given"),
        ({"cron": "* * * * *", "every": MINUTE}, "both cron and every are given: pass exactly one of the two"),
        ({"every": MINUTE, "timezone": "UTC"}, "timezone is given with every"),
        ({"every": MINUTE, "timezone": ""}, "timezone is given with every"),
        ({"every": timedelta(0)}, "every is 0:00:00"),
        ({"every": 60}, "every is int"),
        ({"cron": ""}, "has 0 fields"),
        ({"cron": "0 0 31 2 *"}, "can never fire"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "timezone 'Mars/Olympus' is unknown"),
        ({"cron": "* * * * *", "overlap": None}, "overlap is NoneType"),
        ({"cron": "* * * * *", "queue": ""}, "queue's name is empty"),
        ({"cron": "* * * * *", "queue": "q" * 513}, "queue"),
    ],
)
def test_a_wrong_schedule_is_refused_and_the_task_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(AkadzeError) as refusal:
        make(**options)
    assert str(refusal.value).startswith("schedule of task 'report': ")
    assert complaint in str(refusal.value)


def test_the_queue_is_the_given_one_or_that_of_the_task() -> None:
    assert make(every=MINUTE).queue == "default"
    assert make(every=MINUTE, queue="slow").queue == "slow"


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "60 * * * *",
        "* * * *",
        "* * * * * *",
        "R * * * *",
        "*/0 * * * *",
        "1,,2 * * * *",
        "",
        "@every 5m",
    ],
)
def test_a_refused_expression_leaves_the_app_as_it_was(app: Akadze, expression: str) -> None:
    with pytest.raises(AkadzeError):
        app.periodic("new", cron=expression)(lambda: None)
    with pytest.raises(AkadzeError):
        app.add_schedule("known", cron=expression)
    with pytest.raises(AkadzeError):
        app.add_schedules([ScheduleSpec("known", cron="* * * * *"), {"name": "known", "cron": expression}])
    assert app._schedules == []
    assert list(app.tasks) == ["known"]


@pytest.mark.parametrize("options", [{"timezone": ""}, {"timezone": "+03:00"}, {"timezone": "Mars/Olympus"}])
def test_a_refused_zone_leaves_the_app_as_it_was(app: Akadze, options: dict[str, Any]) -> None:
    with pytest.raises(AkadzeError):
        app.add_schedule("known", cron="0 12 * * *", **options)
    with pytest.raises(AkadzeError):
        app.add_schedule("known", every=MINUTE, timezone="UTC")
    assert app._schedules == []


def test_an_added_schedule_uses_the_queue_of_its_task_and_nothing_is_returned(app: Akadze) -> None:
    untyped: Any = app
    assert untyped.add_schedule("known", cron="0 12 * * *") is None
    assert untyped.add_schedules([{"name": "known", "every": MINUTE, "queue": "slow", "overlap": False}]) is None
    assert [(schedule.task, schedule.queue, schedule.overlap) for schedule in app._schedules] == [
        ("known", "reports", True),
        ("known", "slow", False),
    ]


def test_the_options_of_a_periodic_task_are_those_of_its_task_and_its_schedule(app: Akadze) -> None:
    def backoff(attempt: int) -> timedelta:
        return MINUTE

    async def body() -> None: ...

    zoned = app.periodic(
        "zoned", cron="0 6 * * *", overlap=False, queue="slow", max_attempts=7, timeout=MINUTE, timezone="Europe/Paris",
        backoff=backoff,
    )(body)  # fmt: skip
    plain = app.periodic("plain", every=MINUTE)(body)
    assert [app.tasks["zoned"], app.tasks["plain"]] == [zoned, plain]
    assert [
        (task.fn, task.queue, task.max_attempts, task.timeout, task.priority, task.backoff) for task in (zoned, plain)
    ] == [(body, "slow", 7, MINUTE, 0, backoff), (body, "default", 3, None, 0, None)]
    assert [
        (schedule.task, schedule.queue, schedule.overlap, repr(schedule.trigger)) for schedule in app._schedules
    ] == [
        ("zoned", "slow", False, "Cron('0 6 * * *', 'Europe/Paris')"),
        ("plain", "default", True, repr(Every(MINUTE))),
    ]


def test_a_schedule_of_a_task_that_is_not_registered_or_needs_arguments_is_refused(app: Akadze) -> None:
    def needs(n: int) -> None: ...

    app.register(needs, name="needs")
    for name, says in (("unknown", "task 'unknown' is not registered"), ("needs", "runs without arguments")):
        for add in (
            lambda name=name: app.add_schedule(name, every=MINUTE),
            lambda name=name: app.add_schedules([ScheduleSpec("known", every=MINUTE), {"name": name, "every": MINUTE}]),
        ):
            with pytest.raises(AkadzeError, match=says):
                add()
    with pytest.raises(AkadzeError, match="runs without arguments"):
        app.periodic("new", every=MINUTE)(needs)
    assert app._schedules == []
    assert list(app.tasks) == ["known", "needs"]


# Specs.


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        (5, "an int"),
        (None, "None"),
        ("known", "a str"),
        ({"name": "known", "every": MINUTE}, "a dict"),
        (ScheduleSpec("known", every=MINUTE), "a ScheduleSpec"),
    ],
)
def test_what_is_no_list_of_specs_is_refused(app: Akadze, specs: Any, named: str) -> None:
    with pytest.raises(AkadzeError, match=f"^specs is {named}: give a list of ScheduleSpecs or of mappings$"):
        app.add_schedules(specs)
    assert app._schedules == []
    app.add_schedules(spec for spec in [ScheduleSpec("known", every=MINUTE)])  # type: ignore[arg-type]  # an iterator will do
    assert len(app._schedules) == 1


def test_a_spec_may_be_a_mapping() -> None:
    spec = ScheduleSpec(name="report", cron="0 6 * * *", queue="slow", timezone="Europe/Paris")
    assert read_spec(spec) is spec
    assert read_spec({"name": "report", "cron": "0 6 * * *", "queue": "slow", "timezone": "Europe/Paris"}) == spec
    assert read_spec({"name": "report", "every": MINUTE}) == ScheduleSpec("report", None, MINUTE, True, None, None)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"cron": "* * * * *"}, "a schedule has no name"),
        ({"name": "report", "crno": "* * * * *"}, "unknown key 'crno'"),
        ({"name": "report", 5: "* * * * *"}, "unknown key 5"),
        ("report", "a schedule is str"),
        (None, "a schedule is NoneType"),
    ],
)
def test_a_spec_that_cannot_be_read_is_refused(spec: Any, complaint: str) -> None:
    with pytest.raises(AkadzeError, match=complaint):
        read_spec(spec)


# What is due.


def test_the_latest_slot_within_grace_is_due() -> None:
    schedule = make(every=timedelta(seconds=20))
    assert due([schedule], NOON + timedelta(seconds=59), MINUTE) == [(schedule, NOON + timedelta(seconds=40))]


def test_a_slot_older_than_grace_is_not_due() -> None:
    schedule = make(cron="0 12 * * *")
    assert due([schedule], NOON + MINUTE, MINUTE) == [(schedule, NOON)]
    assert due([schedule], NOON + MINUTE + timedelta(microseconds=1), MINUTE) == []
    assert due([schedule], NOON - timedelta(microseconds=1), MINUTE) == []


def test_a_long_grace_still_gives_one_slot_for_each_schedule() -> None:
    schedules = [make("b", every=MINUTE), make("a", cron="0 * * * *"), make("c", cron="0 0 29 2 *")]
    assert due(schedules, NOON + 5 * MINUTE, timedelta.max) == [
        (schedules[2], datetime(2024, 2, 29, tzinfo=UTC)),
        (schedules[1], NOON),
        (schedules[0], NOON + 5 * MINUTE),
    ]


def test_schedules_of_one_task_that_meet_at_an_instant_are_one_slot() -> None:
    first, second, other = make(cron="0 12 * * *"), make(every=MINUTE, queue="slow"), make("other", every=MINUTE)
    assert due([first, second, other], NOON, MINUTE) == [(first, NOON), (other, NOON)]


def test_schedules_of_one_task_with_different_slots_are_both_due() -> None:
    first, second = make(cron="0 12 * * *"), make(every=timedelta(seconds=20))
    assert due([first, second], NOON + timedelta(seconds=30), MINUTE) == [
        (first, NOON),
        (second, NOON + timedelta(seconds=20)),
    ]


def test_a_clock_read_in_a_zone_that_changes_its_clock_counts_real_time() -> None:
    # 03:30 in the second pass is an hour and a half after 02:00 in the first pass.
    schedule = make(cron="30 2 * * *", timezone="Europe/Berlin")
    now = datetime(2026, 10, 25, 2, 45, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert due([schedule], now, 30 * MINUTE) == []
    assert due([schedule], now, 75 * MINUTE) == [(schedule, datetime(2026, 10, 25, 0, 30, tzinfo=UTC))]


def test_the_next_slot_is_the_first_of_any_schedule() -> None:
    schedules = [make(cron="0 13 * * *"), make(every=timedelta(hours=5)), make(cron="30 12 * * *")]
    assert next_due(schedules, NOON) == NOON + 30 * MINUTE
    assert next_due(schedules, NOON + 30 * MINUTE) == NOON + 60 * MINUTE
    assert next_due([], NOON) is None


def test_triggers_are_shown_with_what_they_were_made_of() -> None:
    assert repr(Cron("0 6 * * *", "Europe/Paris")) == "Cron('0 6 * * *', 'Europe/Paris')"
    assert repr(Every(MINUTE)) == "Every(datetime.timedelta(seconds=60))"
