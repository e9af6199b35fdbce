"""Contract, section 3: the checks of enqueue options, registration and limits."""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akadze._options import (
    NewJob,
    check_job_id,
    check_key,
    check_limit,
    check_meta,
    check_queue,
    check_task_options,
    new_job,
)
from akadze.errors import AkadzeError, EnqueueError

NONE: dict[str, Any] = {
    "priority": 0, "max_attempts": 3, "delay": None, "run_at": None, "unique_key": None, "limit_key": None,
    "expires_at": None, "meta": None,
}  # fmt: skip
E = datetime(2030, 1, 1, tzinfo=UTC)


def job(**options: Any) -> NewJob:
    return new_job("t", "default", **(NONE | options))


def test_options_are_handed_on_as_the_statements_take_them() -> None:
    assert job() == NewJob("t", "default", 0, 3, None, None, None, None, None, "{}")
    assert job(
        delay=timedelta(hours=1), priority=7, max_attempts=9, limit_key="k", unique_key="u", expires_at=E, meta={"a": 1}
    ) == NewJob("t", "default", 7, 9, 3600.0, None, E, "u", "k", '{"a":1}')


@pytest.mark.parametrize(
    "options",
    [
        {"priority": -32768}, {"priority": 32767}, {"max_attempts": 1}, {"max_attempts": 2147483647},
        {"delay": timedelta(0)}, {"delay": timedelta(days=36_500)}, {"delay": timedelta(microseconds=1)},
        {"run_at": datetime(1, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-23)))},
        {"run_at": datetime(9998, 12, 31, tzinfo=UTC)}, {"unique_key": "x" * 512}, {"limit_key": "ž" * 256},
        {"meta": {"k": "x" * 8184}},
    ],
)  # fmt: skip
def test_the_edges_are_allowed(options: dict[str, Any]) -> None:
    assert isinstance(job(**options), NewJob)


class Broken(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return timedelta(days=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": 32768}, "-32768..32767"),
        ({"priority": -32769}, "-32768..32767"),
        ({"priority": 10**5000}, "priority is an int that cannot be shown, but must be in -32768..32767"),
        ({"priority": 10**4000}, "0..., but must be in -32768..32767"),
        ({"priority": True}, "a bool"),
        ({"priority": 1.0}, "a float"),
        ({"priority": None}, "not None"),
        ({"max_attempts": 0}, "1..2147483647"),
        ({"max_attempts": -1}, "1..2147483647"),
        ({"max_attempts": 2**31}, "1..2147483647"),
        ({"max_attempts": "3"}, "a str"),
        ({"delay": timedelta(microseconds=-1)}, "negative"),
        ({"delay": timedelta.max}, "at most 36500 days"),
        ({"delay": 5}, "a timedelta, not an int"),
        ({"delay": timedelta(1), "run_at": E}, "both given"),
        ({"delay": timedelta(0), "run_at": E}, "both given"),
        ({"run_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - naive on purpose
        ({"expires_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - naive on purpose
        ({"run_at": date(2030, 1, 1)}, "not a date"),
        ({"run_at": "2030-01-01T00:00:00Z"}, "not a str"),
        ({"expires_at": 1_900_000_000}, "not an int"),
        ({"expires_at": datetime.max.replace(tzinfo=UTC)}, "years 2 to 9998"),
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))}, "years 2 to 9998"),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, "years 2 to 9998"),
        ({"run_at": datetime.min.replace(tzinfo=UTC)}, "years 2 to 9998"),
        ({"run_at": datetime(2030, 1, 1, tzinfo=Broken())}, "run_at"),
        ({"unique_key": "x" * 513}, "513 bytes"),
        ({"unique_key": "ž" * 257}, "514 bytes"),
        ({"limit_key": "x" * 100_000}, "100000 bytes"),
        ({"unique_key": "a\0b"}, "NUL"),
        ({"limit_key": "\ud800"}, "lone surrogate"),
        ({"unique_key": 5}, "a str, not an int"),
        ({"unique_key": b"x"}, "a str, not a bytes"),
        ({"limit_key": False}, "a str, not a bool"),
        ({"limit_key": UUID(int=1)}, "a str, not a UUID"),
        ({"meta": [1]}, "a mapping"),
        ({"meta": "{}"}, "a mapping"),
        ({"meta": {1: 2}}, "key of type int"),
        ({"meta": {"k": {None: 2}}}, "key of type NoneType"),
        ({"meta": {"k": float("nan")}}, "NaN"),
        ({"meta": {"k": [float("inf")]}}, "infinity"),
        ({"meta": {"k": "a\0"}}, "NUL"),
        ({"meta": {"\0": 1}}, "NUL"),
        ({"meta": {"k": ["\ud800"]}}, "surrogate"),
        ({"meta": {"\ud800": 1}}, "surrogate"),
        ({"meta": {"k": "x" * 8185}}, "8193 bytes"),
        ({"meta": {"k": "ž" * 5000}}, "bytes as JSON"),
        ({"meta": {"k": E}}, "a datetime"),
        ({"meta": {"k": object()}}, "an object"),
        ({"meta": {"k": 10**5000}}, "thousands of digits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(EnqueueError, match=says):
        job(**options)


def test_meta_that_is_deep_or_holds_itself_is_refused() -> None:
    ring: dict[str, Any] = {}
    ring["k"] = [ring]
    deep: dict[str, Any] = {}
    for _ in range(1000):
        deep = {"k": deep}
    for meta in (ring, deep):
        with pytest.raises(EnqueueError, match="levels deep"):
            job(meta=meta)


def test_an_empty_key_means_none() -> None:
    assert job(unique_key="", limit_key="") == job()
    assert check_key("limit_key", "") is None


@pytest.mark.parametrize("key", ["a", "A", "a ", " a", "\uff41", "é", "e\u0301", "a'b", "a%", "0", " "])
def test_keys_are_kept_to_the_character(key: str) -> None:
    assert job(unique_key=key, limit_key=key).unique_key == key


def test_enum_members_and_other_subclasses_become_plain_values() -> None:
    class Name(StrEnum):
        MAIL = "mail"

    class Level(IntEnum):
        HIGH = 5

    made = new_job(
        Name.MAIL,
        Name.MAIL,
        **(NONE | {"priority": Level.HIGH, "unique_key": Name.MAIL, "meta": {Name.MAIL: Name.MAIL}}),
    )
    assert {type(v) for v in (made.task, made.queue, made.unique_key)} == {str}
    assert type(made.priority) is int
    assert (made.task, made.priority, made.meta) == ("mail", 5, '{"mail":"mail"}')
    assert type(check_queue(Name.MAIL)) is str


@given(
    st.datetimes(
        timezones=st.timezones() | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
    )
)
def test_an_instant_is_kept_or_refused(value: datetime) -> None:
    try:
        kept = job(run_at=value).run_at
    except EnqueueError:
        assert value.year < 3 or value.year > 9997
    else:
        assert kept is not None
        assert kept.tzinfo is UTC
        assert kept - value == timedelta(0)


def test_a_zone_is_read_with_its_fold() -> None:
    value = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    assert job(run_at=value).run_at == datetime(2024, 10, 27, 1, 30, tzinfo=UTC)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.text())))
def test_meta_comes_out_as_equal_json_or_is_refused(meta: dict[str, Any]) -> None:
    try:
        text = check_meta(meta)
    except EnqueueError as error:
        assert error.args[0].startswith("meta ")  # noqa: PT017 - either way is right, and says so
    else:
        assert json.loads(text) == meta
        assert "\\u0000" not in text
        assert len(text.encode()) <= 8192


def test_any_mapping_may_be_meta() -> None:
    for meta in (OrderedDict(a=1), MappingProxyType({"a": 1}), {"a": 1}):
        assert check_meta(meta) == '{"a":1}'
    assert check_meta({"a": MappingProxyType({"b": (1, None)})}) == '{"a":{"b":[1,null]}}'
    assert check_meta({"k": "\\u0000 🐎"}) == '{"k":"\\\\u0000 🐎"}'


def test_meta_of_a_filter_is_refused_as_wrong_use_not_as_an_enqueue() -> None:
    with pytest.raises(AkadzeError) as caught:
        check_meta({1: 1}, AkadzeError)
    assert type(caught.value) is AkadzeError


# Registration.


def registered(**options: Any) -> None:
    defaults = {"name": "t", "queue": "q", "max_attempts": 3, "timeout": None, "priority": 0, "backoff": None}
    check_task_options(**(defaults | options))


class Policy:
    def __call__(self, attempt: int) -> timedelta:
        return timedelta(attempt)


class AsyncPolicy:
    async def __call__(self, attempt: int) -> timedelta:
        return timedelta(attempt)


async def async_policy(attempt: int) -> timedelta:
    return timedelta(attempt)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"timeout": timedelta(microseconds=1)}, {"backoff": Policy()}, {"backoff": lambda n: timedelta(n)},
        {"queue": "ž" * 256}, {"name": 'odd "name" \n'}, {"max_attempts": 2147483647}, {"priority": -32768},
    ],
)  # fmt: skip
def test_good_task_options_pass(options: dict[str, Any]) -> None:
    registered(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "empty"),
        ({"name": 5}, "a str"),
        ({"name": "x" * 513}, "513 bytes"),
        ({"name": "a\0"}, "NUL"),
        ({"queue": ""}, "task 't': a queue's name is empty"),
        ({"queue": None}, "not None"),
        ({"queue": "x" * 513}, "513 bytes"),
        ({"queue": "x" * 100_000}, "100000 bytes"),
        ({"queue": "a\0"}, "NUL"),
        ({"queue": "\udfff"}, "lone surrogate"),
        ({"max_attempts": 0}, "1..2147483647"),
        ({"max_attempts": True}, "a bool"),
        ({"max_attempts": None}, "not None"),
        ({"timeout": timedelta(0)}, "more than zero"),
        ({"timeout": timedelta(-1)}, "more than zero"),
        ({"timeout": timedelta.max}, "at most"),
        ({"timeout": 5}, "a timedelta, not an int"),
        ({"priority": 40000}, "-32768..32767"),
        ({"priority": "1"}, "a str"),
        ({"backoff": 5}, "a function"),
        ({"backoff": async_policy}, "async"),
        ({"backoff": AsyncPolicy()}, "async"),
        ({"backoff": functools.partial(async_policy)}, "async"),
    ],
)
def test_bad_task_options_are_refused_at_registration(options: dict[str, Any], says: str) -> None:
    with pytest.raises(AkadzeError, match=says) as caught:
        registered(**options)
    assert type(caught.value) is AkadzeError


# Limits and ids.


def test_limits_may_be_set_together_or_one_by_one() -> None:
    minute = timedelta(minutes=1)
    assert check_limit("k", 4, None, None) == "k"
    assert check_limit("k", None, 100, minute) == "k"
    assert check_limit("k", 0, 0, timedelta(microseconds=1)) == "k"


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (("", 1, None, None), "empty"),
        ((None, 1, None, None), "not None"),
        (("x" * 513, 1, None, None), "513 bytes"),
        (("a\0", 1, None, None), "NUL"),
        (("k", None, None, None), "no limit is given"),
        (("k", -1, None, None), "0..2147483647"),
        (("k", 2**31, None, None), "0..2147483647"),
        (("k", True, None, None), "a bool"),
        (("k", None, -1, timedelta(1)), "0..2147483647"),
        (("k", None, 5, None), "belong together"),
        (("k", 1, 5, None), "belong together"),
        (("k", 1, None, timedelta(1)), "belong together"),
        (("k", None, 5, timedelta(0)), "more than zero"),
        (("k", None, 5, timedelta(-1)), "more than zero"),
        (("k", None, 5, timedelta.max), "at most"),
        (("k", None, 5, 60), "a timedelta"),
        (("k", None, 5.0, timedelta(1)), "a float"),
    ],
)
def test_bad_limits_are_refused(limit: tuple[Any, Any, Any, Any], says: str) -> None:
    with pytest.raises(AkadzeError, match=says) as caught:
        check_limit(*limit)
    assert type(caught.value) is AkadzeError


def test_a_job_id_is_a_positive_bigint() -> None:
    for good in (1, 2**31, 2**53 + 1, 2**63 - 1):
        assert check_job_id(good) == good
    for bad in (0, -1, 2**63, True, "1", 1.0, None):
        with pytest.raises(AkadzeError, match="job_id"):
            check_job_id(bad)
