"""Contract, section 12: the tables are emptied beside a worker that is at work on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.errors import DeadlockDetected
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import OperationalError

from akadze._connections import sync_caller
from akadze._emptying import empty_tables
from akadze._urls import sqlalchemy_url
from tests.waiting import wait_until

_WAITING = "select count(*) from pg_locks where relation = 'akadze.workers'::regclass and not granted"


@pytest.fixture
def worker(database_url: str) -> Iterator[psycopg.Connection]:
    """A session with a transaction that has read of the workers, and that does not look for deadlocks for long."""
    with psycopg.connect(database_url) as connection:
        connection.execute("set deadlock_timeout = '30s'")
        connection.commit()
        connection.execute("select from akadze.workers")
        yield connection


@contextmanager
def _at_the_bad_moment(database_url: str, worker: psycopg.Connection) -> Iterator[None]:
    """Have the worker look at the jobs, which whoever empties has locked, once that one waits for the workers."""
    with psycopg.connect(database_url, autocommit=True) as watcher:

        def look() -> None:
            try:
                wait_until(lambda: watcher.execute(_WAITING).fetchone() == (1,))
                worker.execute("select from akadze.jobs")
            finally:
                worker.commit()

        looking = threading.Thread(target=look)
        looking.start()
        yield
        looking.join()


@contextmanager
def _emptying(database_url: str) -> Iterator[Connection]:
    """A transaction that looks for deadlocks when the worker is sure to wait."""
    engine = create_engine(sqlalchemy_url(database_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("set local deadlock_timeout = '3s'")
        yield connection
    engine.dispose()


def test_a_deadlock_with_a_worker_does_not_fail_it(database_url: str, worker: psycopg.Connection) -> None:
    worker.execute("insert into akadze.queue_pauses (queue) values ('left')")
    with _emptying(database_url) as connection:
        with _at_the_bad_moment(database_url, worker):
            empty_tables(sync_caller(connection))
        assert connection.exec_driver_sql("select count(*) from akadze.queue_pauses").scalar() == 0


def test_the_deadlock_of_the_last_try_is_raised_and_the_transaction_stays_usable(
    database_url: str, worker: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._emptying._TRIES", 1)
    with _emptying(database_url) as connection:
        with _at_the_bad_moment(database_url, worker), pytest.raises(OperationalError) as caught:
            empty_tables(sync_caller(connection))
        assert isinstance(caught.value.orig, DeadlockDetected)
        assert connection.exec_driver_sql("select 1").scalar() == 1
