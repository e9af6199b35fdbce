"""Contract, section 9: what a survey reads: it comes each second, whatever stands in the tables."""

from __future__ import annotations

import pytest

from akadze._statement import statement
from tests.claims.exchanges import MakeExchange
from tests.claims.fixtures import Connect
from tests.claims.line import Line
from tests.waiting import until

SURVEY = statement("claim", "survey")
TUNE_SESSION = statement("session", "tune_session")

_SEQUENTIAL_SCANS = "select cast(sum(seq_scan) as integer) from pg_stat_user_tables where schemaname = 'akadze'"
_TIMES = 50
_OF_PID = "select count(*) from pg_stat_activity where pid = %s"


@pytest.mark.parametrize("jobs", [0, 20_000])
async def test_a_survey_does_not_read_the_line_for_a_doomed_job_where_statistics_are_missing(
    line: Line, connect: Connect, jobs: int
) -> None:
    """Its plan is kept, so that of an empty table matters too."""
    client = await connect()
    await client.run(TUNE_SESSION, local=False)
    # In an open transaction, of which the server's own analyse sees nothing.
    await client.begin()
    await client.sql("insert into akadze.jobs (task) select 'work' from generate_series(1, %s)", [jobs])
    plan = await client.sql(f"explain {SURVEY.pyformat}", {"queues": ["default"], "tasks": ["work"]})
    await client.rollback()

    assert any("jobs_doomed" in row["QUERY PLAN"] for row in plan), plan


async def test_a_survey_reads_indexes_also_where_a_pooler_keeps_no_settings(
    line: Line, make_exchange: MakeExchange
) -> None:
    # Empty tables, whose pages the planner would rather read.
    before = await line.client.value(_SEQUENTIAL_SCANS)
    exchange = await make_exchange()
    held = await exchange.open()
    pid = held.raw.info.backend_pid
    for _ in range(_TIMES):
        await exchange.survey()
    # With the end of the session its counts are told.
    await exchange.give_up()

    async def gone() -> bool:
        return bool(await line.client.value(_OF_PID, [pid]) == 0)

    await until(gone)
    # A few may be of sessions that cleaned up before this test, and told their counts now.
    assert await line.client.value(_SEQUENTIAL_SCANS) < before + _TIMES
