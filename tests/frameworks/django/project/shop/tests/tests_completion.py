"""complete_tx on Django's connection, as drain runs it outside a transaction; tests_worker has the same of a worker."""

from __future__ import annotations

from typing import Any

from django.db import connection

from akadze.contrib.django.testing import drain
from shop import jobs

from .outside import rows
from .worker import WorkerTestCase

_JOBS = "select state, errors -> -1 ->> 'error' from akadze.jobs order by id"
_NOTES = "select text from shop_note order by id"


class Completion(WorkerTestCase):
    def drained(self, task: Any, **arguments: Any) -> None:
        task.using(session=connection).enqueue(**arguments)
        drain()

    def test_outside_a_transaction_drain_commits_as_a_worker_does(self) -> None:
        self.drained(jobs.finish, text="note")
        self.drained(jobs.note_and_fail, text="kept")
        self.assertEqual(rows(_JOBS), [("succeeded", None), ("failed", "RuntimeError")])
        self.assertEqual(rows(_NOTES), [("note",), ("kept",)])

    def test_writes_and_success_are_one_transaction(self) -> None:
        self.drained(jobs.finish, text="note")
        self.assertEqual(rows("select j.xmin = n.xmin from akadze.jobs j, shop_note n"), [(True,)])

    def test_an_error_inside_undoes_the_writes_and_is_one_of_the_run(self) -> None:
        self.drained(jobs.finish, text="note", then="raise inside")
        self.assertEqual((rows(_JOBS), rows(_NOTES)), ([("failed", "RuntimeError")], []))

    def test_an_error_after_it_or_on_commit_undoes_nothing(self) -> None:
        for then in ("raise after", "raise on commit"):
            with self.assertLogs("akadze.job", "WARNING"):
                self.drained(jobs.finish, text=then, then=then)
        self.assertEqual(rows(_JOBS), [("succeeded", None)] * 2)
        self.assertEqual(rows(_NOTES), [("raise after",), ("raise on commit",)])

    def test_a_run_that_has_lost_its_job_commits_nothing(self) -> None:
        self.addCleanup(jobs.app.sync_engine.dispose)  # on which the task takes its own job away
        with self.assertLogs("akadze", "WARNING"):
            self.drained(jobs.finish, text="note", then="lose")
        self.assertEqual((rows(_JOBS), rows(_NOTES)), ([("running", None)], []))

    def test_inside_another_block_it_is_refused(self) -> None:
        self.drained(jobs.finish_inside)
        self.assertEqual((rows(_JOBS), rows(_NOTES)), ([("failed", "AkadzeError")], []))
