"""Contract, section 3: arguments, results, meta and errors in jsonb: what passes our checks must pass PostgreSQL's."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from akadze._arguments import Arguments, result_to_json
from akadze._failure import failure
from akadze._options import check_meta, new_job
from akadze._urls import libpq_url, sqlalchemy_url
from akadze.errors import EnqueueError

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(st.characters()) | st.text(st.sampled_from('\\u0"\0\n\ud800'))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture
def connection(database_url: str) -> Any:
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        yield connection


def kept(connection: Any, text: str) -> str:
    row = connection.execute("select cast(cast(%s as text) as jsonb)::text", (text,)).fetchone()
    return str(row[0])


def taking(annotation: Any) -> Arguments:
    def body(value: object) -> None: ...

    body.__annotations__["value"] = annotation
    return Arguments("t", body)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 10**30),
        (int, 10**4299),
        (float, 1.7976931348623157e308),
        (float, 5e-324),
        (float, 0.1),
        (float, 1e22),
        (Decimal, Decimal("0.10")),
        (str, "\\u0000 \x01 \x7f žluť 🐎 \u2028"),
        (str, "x" * 1_000_000),
        (dict[str, float], {"a": 1e300, "b": 2.0}),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 1, timezone(timedelta(hours=5, minutes=45)))),
    ],
)
def test_a_value_comes_back_from_the_database(connection: Any, annotation: Any, value: Any) -> None:
    arguments = taking(annotation)
    text = kept(connection, arguments.to_json({"value": value}))
    back = arguments.from_json(text)["value"]
    assert back == value
    assert type(back) is type(value)
    assert not arguments.differing(json.loads(text), {"value": value})


@SHARED
@given(values)
def test_the_database_takes_all_arguments_that_pass(connection: Any, value: Any) -> None:
    arguments = taking(Any)
    try:
        text = arguments.to_json({"value": value})
    except EnqueueError:
        return
    stored = kept(connection, text)
    assert arguments.from_json(stored)["value"] == value or "e+" in text
    assert not arguments.differing(json.loads(stored), {"value": value})


@SHARED
@given(values)
def test_the_database_takes_all_results_and_meta_that_pass(connection: Any, value: Any) -> None:
    for write in (lambda: result_to_json(value), lambda: check_meta({"k": value})):
        try:
            text = write()
        except (ValueError, EnqueueError):
            continue
        if text is not None:
            kept(connection, text)


@SHARED
@given(texts)
def test_the_database_takes_every_recorded_failure(connection: Any, text: str) -> None:
    entry = failure(RuntimeError(text), datetime.now(UTC))
    assert json.loads(kept(connection, json.dumps(entry))) == entry


@SHARED
@given(st.datetimes(timezones=st.timezones()))
def test_the_database_takes_every_instant_that_passes_in_any_session_zone(connection: Any, value: datetime) -> None:
    try:
        run_at = new_job(
            "t", "q", priority=0, max_attempts=1, delay=None, run_at=value, unique_key=None, limit_key=None,
            expires_at=None, meta=None,
        ).run_at  # fmt: skip
    except EnqueueError:
        return
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        connection.execute("select set_config('TimeZone', %s, false)", (zone,))
        row = connection.execute("select cast(%s as timestamptz)", (run_at,)).fetchone()
        assert row[0] == run_at


def test_a_key_of_full_length_fits_into_the_indexes(connection: Any) -> None:
    # Random, so that it cannot be compressed.
    connection.execute("create table akadze_keys (queue text, task text, key text)")
    connection.execute("create index on akadze_keys (queue, task, key)")
    connection.execute(
        "insert into akadze_keys select k, k, k from (select string_agg(md5(random()::text), '') as k "
        "from generate_series(1, 16)) r"
    )
    assert connection.execute("select length(key) from akadze_keys").fetchone()[0] == 512
    connection.execute("drop table akadze_keys")


def test_urls_made_of_the_server_s_own_connect(connection: Any, database_url: str) -> None:
    from sqlalchemy import create_engine, text

    with psycopg.connect(libpq_url(sqlalchemy_url(database_url))) as direct:
        assert direct.execute("select 1").fetchone() == (1,)
    engine = create_engine(sqlalchemy_url(libpq_url(database_url)))
    with engine.connect() as through:
        assert through.execute(text("select 1")).scalar() == 1
    engine.dispose()
