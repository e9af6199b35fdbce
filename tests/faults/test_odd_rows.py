"""Contract, sections 5 and 13: rows inserted by plain SQL: those that would stop every worker are refused."""

from __future__ import annotations

import psycopg
import pytest

from akadze import Akadze, list_jobs
from tests.families import few
from tests.worker.serving import Serve
from tests.worker.table import Table


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("run_at", "infinity"),
        ("run_at", "-infinity"),
        ("run_at", "0044-03-15 BC"),
        ("expires_at", "infinity"),
        ("expires_at", "9999-12-31 23:59:59+00"),
        ("meta", "null"),
        ("meta", "[1]"),
        ("errors", "{}"),
        ("errors", "null"),
    ],
)
async def test_a_value_that_no_worker_could_read_is_refused(column: str, value: str, table: Table) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        await table.rows(f"insert into akadze.jobs (task, {column}) values ('task', %s)", value)


@pytest.mark.parametrize(
    "values",
    [
        {"run_at": "0002-01-01 00:00:00+00", "expires_at": "9998-12-31 23:59:59.999999+00"},
        {"args": '{"unknown": 1}'},
        {"args": "[1]"},
        {"args": "null"},
        {"args": f'{{"number": 1{"0" * 9000}}}'},
        {"attempt": "2147483647"},
        {"snoozes": "2147483647"},
        {"max_attempts": "-1"},
        {"priority": "-32768"},
        {"limit_key": "", "unique_key": ""},
        {"state": "running"},
        {"state": "running", "attempt": "2147483647"},
        {"task": "unknown"},
        {"queue": "q" * 600},
    ],
    ids=lambda values: "-".join(values),
)
@pytest.mark.parametrize(
    ("way", "zone"),
    few(
        [("plain", "Asia/Tokyo"), ("limited", "America/Los_Angeles"), ("hooked", "Asia/Tokyo")],
        kept=[("limited", "America/Los_Angeles")],
    ),
)
async def test_an_odd_row_hurts_no_other_job(
    values: dict[str, str], zone: str, way: str, app: Akadze, table: Table, serve: Serve
) -> None:
    await table.rows(
        f"do $$ begin execute format('alter database %%I set timezone = ''{zone}''', current_database()); end $$"
    )
    if way == "limited":
        await table.rows("insert into akadze.limits (key, max_running) values ('key', 1)")
    if way == "hooked":
        app.hooks.on_transition.append(lambda connection, job, from_state, to_state: None)

    @app.task("task", max_attempts=1)
    async def task() -> None:
        pass

    columns, places = ", ".join(values), ", ".join(["%s"] * len(values))
    if "task" not in values:
        columns, places = f"task, {columns}", f"'task', {places}"
    await table.rows(f"insert into akadze.jobs ({columns}) values ({places})", *values.values())
    await table.rows("insert into akadze.jobs (task) select 'task' from generate_series(1, 3)")
    served = await serve(slots=2)
    await table.until("select count(*) = 3 from akadze.jobs where id > 1 and state = 'succeeded'")
    assert served.up
    assert len(await list_jobs(app.engine)) == 4
