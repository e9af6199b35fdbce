"""Contract, section 13: which rights migrate, enqueueing, running and reading need."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from akadze import Akadze, sync
from akadze.sync.metrics import render_metrics
from akadze.sync.testing import drain
from tests.schema.conftest import Role, of_this_process

APP, RUN, READ = (of_this_process(f"akadze_test_{name}") for name in ("app", "run", "read"))


def run(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        answer: list[Any] = []
        for statement in statements:
            cursor = connection.execute(statement)  # type: ignore[arg-type]  # a test's own text
            answer = cursor.fetchall() if cursor.description else []
        return answer


def use_everything(url: str) -> None:
    """Enqueue, run, and call all that an application calls."""
    app = Akadze(database_url=url)

    @app.task("work")
    def work() -> int:
        return 7

    with app.sync_engine.begin() as connection:
        work.using(session=connection, unique_key="u", limit_key="k", meta={"a": 1}).enqueue()
        work.using(session=connection).enqueue_many([{}, {}])
        sync.set_limit(connection, "k", 1, max_starts=5, window=app.retention)
        sync.pause_queue(connection, "mail")
        sync.resume_queue(connection, "mail")
    job = sync.list_jobs(app.sync_engine)[-1]
    with app.sync_engine.begin() as connection:
        sync.request_cancel(connection, job.id)
    drain(app)
    with app.sync_engine.begin() as connection:
        connection.exec_driver_sql("update akadze.jobs set state = 'failed' where state = 'succeeded'")
        sync.requeue(connection, min(job.id for job in sync.list_jobs(connection, state="failed")))
        sync.clear_limit(connection, "k")
    assert sorted(job.state for job in sync.list_jobs(app.sync_engine)) == ["cancelled", "failed", "queued"]
    read_everything(url)
    app.close()


def read_everything(url: str) -> None:
    app = Akadze(database_url=url)
    sync.list_jobs(app.sync_engine, meta={"a": 1})
    sync.list_limits(app.sync_engine)
    sync.list_workers(app.sync_engine)
    sync.list_paused_queues(app.sync_engine)
    sync.queue_snapshot(app.sync_engine)
    assert "akadze_jobs" in render_metrics(app.sync_engine)
    assert sync.applied_versions(url) != []
    app.close()


def test_a_role_that_may_create_in_the_database_needs_no_superuser(empty_database_url: str, role: Role) -> None:
    url = role(APP, empty_database_url)
    [(name,)] = run(empty_database_url, "select quote_ident(current_database())")
    run(empty_database_url, f"grant connect, create on database {name} to {APP}")
    before = run(empty_database_url, "select extname from pg_extension")
    sync.migrate(url)
    use_everything(url)
    assert run(empty_database_url, "select extname from pg_extension") == before
    owners = run(empty_database_url, "select distinct tableowner from pg_tables where schemaname = 'akadze'")
    assert owners == [(APP,)]


def test_where_the_schema_is_there_no_right_to_create_schemas_is_needed(empty_database_url: str, role: Role) -> None:
    url = role(APP, empty_database_url)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sync.migrate(url)
    run(empty_database_url, f"create schema akadze authorization {APP}")
    sync.migrate(url)
    sync.migrate(url)
    use_everything(url)


def test_applications_and_workers_need_no_more_than_to_read_and_write_rows(empty_database_url: str, role: Role) -> None:
    sync.migrate(empty_database_url)
    url = role(RUN, empty_database_url)
    run(
        empty_database_url,
        f"grant usage on schema akadze to {RUN}",
        f"grant select, insert, update, delete on all tables in schema akadze to {RUN}",
        f"grant usage on all sequences in schema akadze to {RUN}",
    )
    use_everything(url)
    sync.migrate(url)  # there is nothing to do


def test_readers_need_no_more_than_to_read(empty_database_url: str, role: Role) -> None:
    sync.migrate(empty_database_url)
    url = role(READ, empty_database_url)
    run(
        empty_database_url,
        f"grant usage on schema akadze to {READ}",
        f"grant select on all tables in schema akadze to {READ}",
        f"alter role {READ} set default_transaction_read_only = on",
    )
    read_everything(url)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        run(url, "insert into akadze.queue_pauses (queue) values ('mail')")
