"""Contract, section 13: what migrate makes, and that it may be run again, anywhere."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import scalar_row

from akadze import Akadze, AkadzeError, JobSummary, applied_versions, list_jobs, list_workers, migrate, set_limit
from akadze._async import schema
from akadze._statement import Statement
from akadze.job import Job
from akadze.testing import drain

from .conftest import Rows

TABLES = ["jobs", "limit_starts", "limits", "periodic_runs", "queue_pauses", "schema_migrations", "workers"]


async def ask(url: str, question: str) -> list[Any]:
    """Return the first column of the answer."""
    async with await AsyncConnection.connect(url, autocommit=True, row_factory=scalar_row) as connection:
        cursor = await connection.execute(question)  # type: ignore[arg-type]  # a test's own text
        return await cursor.fetchall() if cursor.description else []


async def tables(url: str) -> list[Any]:
    return await ask(url, "select tablename from pg_tables where schemaname = 'akadze' order by tablename")


async def contents(url: str) -> list[Any]:
    """Everything that the database knows of, and when each migration was applied."""
    return await ask(
        url,
        "select concat_ws(' ', oid, relname, relfilenode, xmin) from pg_class where relname !~ '^(pg_|sql_)'"
        " union all select concat_ws(' ', nspname, xmin) from pg_namespace"
        " union all select extname from pg_extension order by 1",
    )


async def test_an_empty_database_gets_all_tables(empty_database_url: str) -> None:
    assert await applied_versions(empty_database_url) == []
    assert await migrate(empty_database_url) is None
    assert await tables(empty_database_url) == TABLES
    versions = await applied_versions(empty_database_url)
    assert versions == sorted(set(versions))
    assert versions[0] == "0001_tables"


async def test_a_migrated_database_stays_as_it_is(empty_database_url: str) -> None:
    await migrate(empty_database_url)
    before = await contents(empty_database_url)
    stamps = await ask(empty_database_url, "select applied_at from akadze.schema_migrations order by version")
    await migrate(empty_database_url)
    await migrate(empty_database_url)
    assert await contents(empty_database_url) == before
    assert await ask(empty_database_url, "select applied_at from akadze.schema_migrations order by version") == stamps


async def test_jobs_survive_a_migrate(app: Akadze, database_url: str, rows: Rows) -> None:
    await rows("insert into akadze.jobs (task) values ('kept')")
    await migrate(database_url)
    assert await rows("select task from akadze.jobs") == [{"task": "kept"}]


async def test_asking_for_the_versions_makes_nothing(empty_database_url: str) -> None:
    before = await contents(empty_database_url)
    assert await applied_versions(empty_database_url) == []
    assert await contents(empty_database_url) == before
    await ask(empty_database_url, "create schema akadze")
    assert await applied_versions(empty_database_url) == []
    assert await tables(empty_database_url) == []


async def test_asking_for_the_versions_works_where_nothing_may_be_written(database_url: str) -> None:
    read_only = f"{database_url}&options=-c%20default_transaction_read_only%3Don"
    assert await applied_versions(read_only) == await applied_versions(database_url)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await ask(read_only, "create table public.refused ()")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg"])
async def test_every_form_of_a_url_is_understood(scheme: str, empty_database_url: str) -> None:
    url = re.sub(r"^\w+://", f"{scheme}://", empty_database_url)
    await migrate(url)
    assert await applied_versions(url) == await applied_versions(empty_database_url) != []


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://u:s3cret@h/d", "postgresql://u:s3cret@h:port/d", 7])
async def test_a_url_that_is_wrong_is_refused_without_its_password(url: Any) -> None:
    for call in (migrate, applied_versions):
        with pytest.raises(AkadzeError) as raised:
            await call(url)
        assert "s3cret" not in str(raised.value)


async def test_a_step_that_fails_leaves_nothing_behind(empty_database_url: str) -> None:
    await ask(empty_database_url, "create schema akadze")
    await ask(empty_database_url, "create table akadze.limit_starts (mine text)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        await migrate(empty_database_url)
    assert await tables(empty_database_url) == ["limit_starts"]
    assert await applied_versions(empty_database_url) == []

    await ask(empty_database_url, "drop table akadze.limit_starts")
    await migrate(empty_database_url)
    assert await tables(empty_database_url) == TABLES


async def test_a_step_gives_up_when_a_lock_is_not_to_be_had_in_time(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = schema._LIMIT_WAITING.sql
    assert "'lock_timeout', '30s'" in limit
    monkeypatch.setattr(schema, "_LIMIT_WAITING", Statement("limit", limit.replace("30s", "100ms")))
    # If it waited longer, the server would end the one who holds the lock, and it would get it.
    options = "-c idle_in_transaction_session_timeout=5s"
    async with await AsyncConnection.connect(empty_database_url, options=options) as other:
        await other.execute("select pg_advisory_xact_lock(hashtextextended('akadze.migrate', 0))")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await migrate(empty_database_url)
    assert await tables(empty_database_url) == []
    await migrate(empty_database_url)
    assert await tables(empty_database_url) == TABLES


async def test_a_schema_that_was_dropped_is_made_again(empty_database_url: str) -> None:
    await migrate(empty_database_url)
    versions = await applied_versions(empty_database_url)
    await ask(empty_database_url, "drop schema akadze cascade")
    assert await applied_versions(empty_database_url) == []
    await migrate(empty_database_url)
    assert await applied_versions(empty_database_url) == versions
    assert await tables(empty_database_url) == TABLES


async def test_columns_have_the_names_of_the_fields(database_url: str) -> None:
    columns = set(
        await ask(
            database_url,
            "select column_name from information_schema.columns where table_schema = 'akadze' and table_name = 'jobs'",
        )
    )
    for kind in (Job, JobSummary):
        assert {field.name for field in dataclasses.fields(kind)} <= columns


async def test_no_extension_is_needed(empty_database_url: str) -> None:
    before = await ask(empty_database_url, "select extname from pg_extension order by 1")
    await migrate(empty_database_url)
    assert await ask(empty_database_url, "select extname from pg_extension order by 1") == before


ODD_SETTINGS = {
    "search_path": "''",
    "TimeZone": "'Asia/Kathmandu'",
    "DateStyle": "'German'",
    "IntervalStyle": "'sql_standard'",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "default_transaction_isolation": "'serializable'",
    "extra_float_digits": "0",
    "bytea_output": "'escape'",
    "xmloption": "'document'",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "enable_seqscan": "off",
}


async def test_everything_works_whatever_the_settings_of_the_database_are(empty_database_url: str) -> None:
    [name] = await ask(empty_database_url, "select quote_ident(current_database())")
    [supported] = await ask(
        empty_database_url, "select array_agg(lower(name)) from pg_settings where context in ('user', 'superuser')"
    )
    for setting, value in ODD_SETTINGS.items():
        if setting.lower() in supported:
            await ask(empty_database_url, f"alter database {name} set {setting} = {value}")
    await ask(empty_database_url, "create schema odd")
    await ask(empty_database_url, "create table odd.jobs (id text)")
    await ask(empty_database_url, f"alter database {name} set search_path = odd")
    await migrate(empty_database_url)
    assert await tables(empty_database_url) == TABLES
    versions = await applied_versions(empty_database_url)
    await migrate(empty_database_url)
    assert await applied_versions(empty_database_url) == versions

    app = Akadze(database_url=empty_database_url)
    seen: list[Any] = []
    app.hooks.on_transition.append(lambda connection, job, before, after: seen.append((after, job.errors)))

    @app.task("work", max_attempts=1)
    def work(text: str) -> str:
        if not text:
            raise ZeroDivisionError
        return text

    if True:  # ASYNC
        engine = app.engine
    else:
        engine = app.sync_engine
    text = "back\\slash 'quote' \" é"
    async with engine.begin() as connection:
        await work.using(session=connection, unique_key=text, meta={text: text}).enqueue(text=text)
        await work.using(session=connection).enqueue_many([{"text": ""}])
        await set_limit(connection, text, 1)
    await drain(app)
    jobs = await list_jobs(engine, meta={text: text})
    assert [(job.state, dict(job.meta)) for job in jobs] == [("succeeded", {text: text})]
    assert jobs[0].started_at is not None
    assert jobs[0].run_at <= jobs[0].started_at
    assert await list_workers(engine) == ()
    assert [after for after, _ in seen] == ["running", "succeeded", "running", "failed"]
    assert await ask(empty_database_url, "select result #>> '{}' from akadze.jobs order by id") == [text, None]
    if True:  # ASYNC
        await app.aclose()
    else:
        app.close()
