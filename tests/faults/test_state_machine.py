"""Contract, section 4: a job's moves against the model of `job_model`, in random sequences that can be repeated.

A failure prints its steps. In full, other sequences are tried each time: the seed is printed, and
`--hypothesis-seed` takes it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from akadze import context
from akadze._async import jobs as async_jobs
from akadze._async import transitions as async_transitions
from akadze._statement import Statement
from akadze._sync import jobs as sync_jobs
from akadze._sync import transitions as sync_transitions
from akadze._worker import exchange
from tests.claims.clients import variant
from tests.families import FULL
from tests.faults.job_rules import JobRules
from tests.faults.job_tables import Tables

TRANSITIONS = [async_transitions, sync_transitions]


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    tables = Tables(database_url)
    yield tables
    tables.close()


def explore(tables: Tables, *, examples: int, steps: int, number: int | None = None, shrink: bool = True) -> None:
    """Run sequences of steps; the same ones each time if there is no number."""
    machine: Any = type("Machine", (JobRules,), {"tables": tables})
    if number is not None:
        machine = seed(number)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=number is None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=[*HealthCheck],
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.heavy(minutes=4)
def test_jobs_move_as_the_model_says(tables: Tables, full: bool) -> None:
    if not full:
        explore(tables, examples=12, steps=40)
        return
    number = random.SystemRandom().randrange(2**32)
    print(f"--hypothesis-seed={number}")
    explore(tables, examples=300, steps=60, number=number)


#: Statements without one of their guards; the first ones are noticed soon.
WRONG = [
    ([exchange, *TRANSITIONS], "_FINISH_RUNS", ("and j.worker_id = cast(:worker as uuid) ", "")),
    ([exchange, *TRANSITIONS], "_FINISH_RUNS", ("coalesce(m.snoozes, j.snoozes)", "j.snoozes")),
    ([exchange, *TRANSITIONS], "_FINISH_RUNS", (" and j.run_count = o.run", "")),
    ([exchange], "_CLAIM_PLAIN", ("order by j.run_at, j.id", "order by j.id")),
    ([exchange], "_CLAIM_PLAIN", ("and (j.limit_key is null or not exists (", "and (true or not exists (")),
    ([exchange], "_TAKE_CHOSEN", ("insert into akadze.limit_starts (key, started_at)\n  select", "select")),
    (TRANSITIONS, "_RESCUE_JOBS", ("when j.cancel_requested_at is not null then 'cancelled'", "")),
    (TRANSITIONS, "_LOCK_LOST_JOBS", (" and w.heartbeat_at > now() - w.heartbeat_ttl", "")),
    (
        TRANSITIONS,
        "_LOCK_LOST_JOBS",
        ("j.worker_id is distinct from cast(:rescuer as uuid)", "(cast(:rescuer as uuid) is null or true)"),
    ),
    ([async_jobs, sync_jobs], "_REQUEUE_JOB", ("expires_at = null, ", "")),
    ([context], "_COMPLETE_RUN", ("and j.run_count = cast(:run as integer)", "")),
]


@FULL
@pytest.mark.heavy(minutes=6)
def test_a_statement_that_were_wrong_would_be_noticed(
    tables: Tables, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for places, name, change in WRONG if full else WRONG[:2]:
        right: Statement = getattr(places[0], name)
        with monkeypatch.context() as patch:
            for place in places:
                patch.setattr(place, name, variant(right, change))
            with pytest.raises((AssertionError, psycopg.Error)):
                explore(tables, examples=600, steps=40, shrink=False)
