"""The helpers for tests, where a worker is still at work."""

from __future__ import annotations

import threading

import psycopg
from django.db import connection
from django.test import TransactionTestCase

from akadze._urls import libpq_url
from akadze.contrib.django import database_url
from akadze.contrib.django.testing import empty_tables
from shop import jobs

from .outside import counts
from .worker import wait_until

_WAITING = "select count(*) from pg_locks where relation = 'akadze.workers'::regclass and not granted"


class Emptying(TransactionTestCase):
    def test_a_deadlock_with_a_worker_does_not_fail_it(self) -> None:
        jobs.note.using(session=connection).enqueue(text="left")
        url = libpq_url(database_url())
        with psycopg.connect(url) as worker, psycopg.connect(url, autocommit=True) as watcher:
            # Long enough for this connection to be the one that looks for a deadlock when both wait.
            worker.execute("set deadlock_timeout = '30s'")
            worker.commit()
            worker.execute("select from akadze.workers")

            def look_at_the_jobs() -> None:
                try:
                    wait_until(lambda: watcher.execute(_WAITING).fetchone() == (1,))
                    worker.execute("select from akadze.jobs")
                finally:
                    worker.commit()

            looking = threading.Thread(target=look_at_the_jobs)
            with connection.cursor() as cursor:
                cursor.execute("set deadlock_timeout = '3s'")
            looking.start()
            empty_tables()
            looking.join()
            with connection.cursor() as cursor:
                cursor.execute("reset deadlock_timeout")
        self.assertEqual(counts(), (0, 0, 0))
