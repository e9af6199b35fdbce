"""The management commands that end by themselves; for `akadze_worker` see tests_worker."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from django.core import mail
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import SimpleTestCase, TransactionTestCase

from akadze import AkadzeError
from akadze._sync import schema
from akadze._sync.schema import known_versions
from akadze.contrib.django.models import Job
from akadze.contrib.django.testing import drain, empty_tables
from shop import jobs

OWN_STEPS = schema._STEPS


def _printed(*arguments: str) -> str:
    output = io.StringIO()
    call_command(*arguments, stdout=output)
    return output.getvalue()


class Jobs(TransactionTestCase):
    """Commands have a connection of their own, so these tests commit."""

    def tearDown(self) -> None:
        empty_tables()

    def enqueue(self, task: Any = jobs.note, **options: Any) -> int:
        arguments = options.pop("arguments", {"text": "the argument"})
        task.using(session=connection, **options).enqueue(**arguments)
        found: int = Job.objects.latest("id").pk
        return found

    def test_list_shows_jobs_that_the_filters_keep(self) -> None:
        first, second = self.enqueue(meta={"tenant": 7}), self.enqueue(jobs.note_async)
        self.assertEqual(len(_printed("akadze_jobs", "list").splitlines()), 2)
        for options, found in (
            (["--queue", "later"], [second]),
            (["--meta", "tenant=7"], [first]),
            (["--state", "failed"], []),
            (["--limit", "1"], [first]),
        ):
            shown = json.loads(_printed("akadze_jobs", "list", "--json", *options))
            self.assertEqual([job["id"] for job in shown], found)

    def test_show_shows_arguments_and_result_when_they_are_asked_for(self) -> None:
        job_id = str(self.enqueue())
        self.assertNotIn("the argument", _printed("akadze_jobs", "show", job_id))
        self.assertIn("the argument", _printed("akadze_jobs", "show", job_id, "--args"))
        self.assertIn("task=note", _printed("akadze_jobs", "show", job_id, "--result"))

    def test_requeue_and_cancel_do_it_to_all_or_none(self) -> None:
        failed, queued = self.enqueue(jobs.note_and_fail), self.enqueue()
        drain(limit=2)
        with self.assertRaisesMessage(CommandError, "only a failed job can be requeued") as caught:
            _printed("akadze_jobs", "requeue", str(failed), str(queued))
        self.assertEqual(caught.exception.returncode, 1)
        self.assertEqual(Job.objects.get(pk=failed).state, "failed")
        self.assertIn("state=queued", _printed("akadze_jobs", "requeue", str(failed)))
        _printed("akadze_jobs", "cancel", str(failed))
        self.assertIsNotNone(Job.objects.get(pk=failed).cancel_requested_at)

    def test_wrong_use_is_an_error(self) -> None:
        with self.assertRaisesMessage(CommandError, "sqlite"):
            _printed("akadze_jobs", "list", "--database", "notes")
        with self.assertRaisesMessage(CommandError, "no job 99"):
            _printed("akadze_jobs", "show", "99")
        with self.assertRaises(CommandError):
            _printed("akadze_jobs")


class Migrate(TransactionTestCase):
    def tearDown(self) -> None:
        # Whatever a test did, the next one finds the schema.
        _printed("akadze_migrate")
        empty_tables()

    def state(self) -> tuple[bool, bool]:
        """Whether the schema is there, and whether Django holds its migration for applied."""
        with connection.cursor() as cursor:
            cursor.execute(
                "select to_regclass('akadze.jobs') is not null,"
                " exists (select from django_migrations where app = 'akadze')"
            )
            found: tuple[bool, bool] = cursor.fetchone()
            return found

    def drop(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("drop schema akadze cascade; delete from django_migrations where app = 'akadze'")

    def test_a_test_database_has_the_schema(self) -> None:
        self.assertEqual(self.state(), (True, True))
        lines = _printed("akadze_migrate").splitlines()
        self.assertEqual(lines, [f"version={version} new=false" for version in known_versions()])

    def test_djangos_migrate_and_akadzes_own_may_come_in_any_order(self) -> None:
        self.drop()
        self.assertIn("new=true", _printed("akadze_migrate"))
        self.assertEqual(self.state(), (True, False))
        call_command("migrate", "akadze", verbosity=0)
        self.assertEqual(self.state(), (True, True))
        self.drop()
        call_command("migrate", "akadze", verbosity=0)
        self.assertEqual(self.state(), (True, True))
        self.assertIn("new=false", _printed("akadze_migrate"))

    def test_djangos_migrate_builds_indexes_beside_writers(self) -> None:
        self.drop()
        with TemporaryDirectory() as folder, mock.patch.object(schema, "_STEPS", Path(folder)) as steps:
            shutil.copytree(str(OWN_STEPS), folder, dirs_exist_ok=True)
            (steps / "9001_index.sql").write_text(
                "drop index concurrently if exists akadze.mine;\n"
                "create index concurrently mine on akadze.jobs (task);\n"
            )
            call_command("migrate", "akadze", verbosity=0)
            self.assertEqual(known_versions()[-1], "9001_index")
            self.assertIn("version=9001_index new=false", _printed("akadze_migrate"))
        self.drop()

    def test_going_back_keeps_the_jobs(self) -> None:
        jobs.note.using(session=connection).enqueue(text="kept")
        call_command("migrate", "akadze", "zero", verbosity=0)
        self.assertEqual(self.state(), (True, False))
        call_command("migrate", "akadze", verbosity=0)
        self.assertEqual((self.state(), Job.objects.count()), ((True, True), 1))

    def test_other_databases_are_left_alone(self) -> None:
        call_command("migrate", "akadze", database="notes", verbosity=0)
        with self.assertRaisesMessage(CommandError, "sqlite"):
            _printed("akadze_migrate", "--database", "notes")

    databases = {"default", "notes"}  # noqa: RUF012 - as Django has it


class EmptyTables(SimpleTestCase):
    def test_it_works_in_test_runs_only(self) -> None:
        outbox = mail.outbox
        self.addCleanup(setattr, mail, "outbox", outbox)
        del mail.outbox
        with self.assertRaisesMessage(AkadzeError, "test environment"):
            empty_tables()
