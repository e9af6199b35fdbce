"""The models that read akadze's tables, and which driver they do it on."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import TestCase

from akadze import AkadzeError
from akadze._sync.schema import known_versions
from akadze.contrib.django.models import Job, Limit, PeriodicRun, QueuePause, Worker
from akadze.sync import pause_queue, set_limit
from shop import jobs


class Driver(TestCase):
    def test_it_is_the_one_that_is_meant(self) -> None:
        connection.ensure_connection()
        raw = connection.connection
        self.assertEqual(type(raw).__module__.startswith("psycopg2"), "SHOP_PSYCOPG2" in os.environ)
        options: dict[str, Any] = settings.DATABASES["default"]["OPTIONS"]
        if options.get("server_side_binding"):
            self.assertEqual(raw.cursor_factory.__name__, "ServerBindingCursor")
        self.assertEqual(connection.pool is not None if "pool" in options else False, "pool" in options)


class Models(TestCase):
    def test_they_have_the_columns_of_the_tables_and_no_others(self) -> None:
        for model in apps.get_app_config("akadze").get_models():
            table = model._meta.db_table.split('"')[3]
            with self.subTest(table=table), connection.cursor() as cursor:
                cursor.execute(
                    "select column_name, is_nullable = 'YES' from information_schema.columns"
                    " where table_schema = 'akadze' and table_name = %s",
                    [table],
                )
                columns = dict(cursor.fetchall())
            fields = {field.column: field.null for field in model._meta.concrete_fields}
            self.assertEqual(fields, columns)

    def test_they_read_rows(self) -> None:
        jobs.note.using(session=connection, priority=3, meta={"a": [1]}, limit_key="k").enqueue(text="note")
        job = Job.objects.get(meta__a__contains=1, state="queued")
        self.assertEqual((job.task, job.args, job.priority, job.result), ("note", {"text": "note"}, 3, None))
        set_limit(connection, "k", 2, max_starts=5, window=timedelta(minutes=1))
        limit = Limit.objects.get(pk="k")
        self.assertEqual((limit.max_running, limit.max_starts, limit.window), (2, 5, timedelta(minutes=1)))
        pause_queue(connection, "default")
        self.assertEqual(QueuePause.objects.get().queue, "default")
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
                " values (gen_random_uuid(), 'here', 7, '{a,b}', interval '3 s');"
                "insert into akadze.periodic_runs (task, slot, job_id) values ('t', now(), 9)"
            )
        worker = Worker.objects.get(hostname="here")
        self.assertEqual((worker.queues, worker.heartbeat_ttl), (["a", "b"], timedelta(seconds=3)))
        run = PeriodicRun.objects.get(task="t")
        self.assertEqual(PeriodicRun.objects.get(pk=("t", run.slot)).job_id, 9)
        for row in (job, limit, worker, run, QueuePause.objects.get()):
            self.assertTrue(str(row))

    def test_they_refuse_to_write(self) -> None:
        jobs.note.using(session=connection).enqueue(text="note")
        job = Job.objects.get()
        for write in (
            job.save,
            job.delete,
            Job.objects.all().delete,
            lambda: Job.objects.update(state="failed"),
            lambda: Job.objects.create(task="note"),
            lambda: Job.objects.bulk_create([Job(task="note")]),
            lambda: Job.objects.bulk_update([job], ["state"]),
        ):
            with self.assertRaisesMessage(AkadzeError, "akadze.sync"):
                write()
        self.assertEqual(Job.objects.count(), 1)


class Migrations(TestCase):
    def test_there_is_nothing_left_to_make(self) -> None:
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)

    def test_each_of_akadzes_own_has_one_here(self) -> None:
        # apply_schema applies them all; a later one needs a migration of this app, or `migrate` would not see it.
        from django.db.migrations.loader import MigrationLoader

        here = [name for app, name in MigrationLoader(connection).disk_migrations if app == "akadze"]
        self.assertEqual(len(here), len(known_versions()))
