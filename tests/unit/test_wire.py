"""Contract, section 7: what libpq answers to a pipeline, read to its end and no further."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from psycopg.pq import ExecStatus

from akadze._worker.wire import _exchange


def connection(*results: ExecStatus | None) -> SimpleNamespace:
    left = iter([None if status is None else SimpleNamespace(status=status) for status in results])
    return SimpleNamespace(flush=lambda: 0, is_busy=lambda: 0, get_result=lambda: next(left, None))


def read(pgconn: SimpleNamespace) -> list[ExecStatus]:
    try:
        next(_exchange(pgconn))
    except StopIteration as end:
        return [result.status for result in end.value]
    raise AssertionError("it waits although nothing is to come")


def test_the_end_of_a_statement_is_not_that_of_the_pipeline() -> None:
    pgconn = connection(ExecStatus.COMMAND_OK, None, ExecStatus.TUPLES_OK, None, ExecStatus.PIPELINE_SYNC)
    assert read(pgconn) == [ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK]


def test_answers_that_end_too_early_are_a_lost_connection_and_no_endless_loop() -> None:
    with pytest.raises(psycopg.OperationalError, match="ended before"):
        read(connection(ExecStatus.TUPLES_OK, None))
