"""A real worker process runs what the test commits."""

from __future__ import annotations

import json
import logging
import signal
from typing import Any
from unittest import mock

import django
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import SimpleTestCase

from akadze.contrib.django import models
from akadze.contrib.django.models import Job
from shop import jobs
from shop.models import Note, Order

from .outside import last_job_id, rows
from .worker import Worker, WorkerTestCase, wait_until

_ENDED = ("succeeded", "failed", "cancelled")


def _ended(job_id: int) -> Job:
    wait_until(lambda: Job.objects.filter(pk=job_id, state__in=_ENDED).exists())
    found: Job = Job.objects.get(pk=job_id)
    return found


class Run(WorkerTestCase):
    """One worker for all of them."""

    worker: Worker

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.worker = Worker("--slots", "4", "--heartbeat-interval", "200ms")
        cls.addClassCleanup(cls.worker.end)

    def setUp(self) -> None:
        # The tables are emptied after each test, its row included: it comes back with the next beat.
        wait_until(models.Worker.objects.exists)

    def enqueue(self, task: Any, **arguments: Any) -> int:
        task.using(session=connection).enqueue(**arguments)
        return last_job_id()

    def test_a_view_that_commits_has_its_job_run_and_one_that_rolls_back_has_none(self) -> None:
        with self.assertRaisesMessage(RuntimeError, "after the enqueue"):
            self.client.post("/orders/", {"item": "coffee", "then": "fail"})
        response = self.client.post("/orders/", {"item": "tea"})
        job = _ended(last_job_id())
        self.assertEqual(job.state, "succeeded")
        self.assertEqual((Order.objects.get().pk, Order.objects.get().confirmed), (int(response.content), True))
        self.assertEqual(Job.objects.count(), 1)

    def test_an_uncommitted_job_is_not_run_before_the_commit(self) -> None:
        first = self.enqueue(jobs.note, text="first")
        with transaction.atomic():
            waiting = self.enqueue(jobs.note, text="second")
            _ended(first)
            third = rows("select count(*) from akadze.jobs where id = %s", waiting)
            self.assertEqual(third, [(0,)])
        self.assertEqual(_ended(waiting).state, "succeeded")

    def test_outside_a_block_a_job_commits_at_once_as_the_orm_does(self) -> None:
        self.enqueue(jobs.note, text="note")
        self.assertEqual(rows("select count(*) from akadze.jobs"), [(1,)])

    def test_complete_tx_commits_writes_and_success_in_one_transaction(self) -> None:
        job_id = self.enqueue(jobs.finish, text="note")
        self.assertEqual(_ended(job_id).state, "succeeded")
        [(same,)] = rows("select j.xmin = n.xmin from akadze.jobs j, shop_note n where j.id = %s", job_id)
        self.assertTrue(same)

    def test_an_error_inside_complete_tx_undoes_the_writes(self) -> None:
        job_id = self.enqueue(jobs.finish, text="note", then="raise inside")
        job = _ended(job_id)
        self.assertEqual((job.state, job.errors[0]["error"], Note.objects.count()), ("failed", "RuntimeError", 0))

    def test_a_run_that_has_lost_its_job_commits_nothing(self) -> None:
        job_id = self.enqueue(jobs.finish, text="note", then="lose")
        # Its owner is made up, so it is rescued.
        job = _ended(job_id)
        self.assertEqual((job.state, job.errors[-1]["error"], Note.objects.count()), ("failed", "WorkerLost", 0))
        wait_until(lambda: "RunLost" in self.worker.log)

    def test_errors_after_complete_tx_and_on_commit_undo_nothing_and_are_logged(self) -> None:
        for then in ("raise after", "raise on commit"):
            job = _ended(self.enqueue(jobs.finish, text=then, then=then))
            self.assertEqual((job.state, job.errors), ("succeeded", []))
            wait_until(lambda job=job: f"job {job.pk} of task finish: RuntimeError after" in self.worker.log)
        self.assertEqual({note.text for note in Note.objects.all()}, {"raise after", "raise on commit"})

    def test_complete_tx_inside_another_block_is_refused(self) -> None:
        job_id = self.enqueue(jobs.finish_inside)
        job = _ended(job_id)
        self.assertEqual((job.state, job.errors[0]["error"], Note.objects.count()), ("failed", "AkadzeError", 0))

    def test_an_async_task_finishes_in_either_way(self) -> None:
        for how in ("on Django's connection", "on akadze's"):
            job_id = self.enqueue(jobs.finish_async, text=how, how=how)
            self.assertEqual((_ended(job_id).state, _ended(job_id).errors), ("succeeded", []))
            same = rows(
                "select j.xmin = n.xmin from akadze.jobs j, shop_note n where j.id = %s and text = %s", job_id, how
            )
            self.assertEqual(same, [(True,)])

    def test_an_async_task_uses_the_orm(self) -> None:
        ids = [self.enqueue(jobs.note_async, text=str(number)) for number in range(10)]
        self.assertEqual({_ended(job_id).state for job_id in ids}, {"succeeded"})
        self.assertEqual(Note.objects.count(), 10)


class Command(WorkerTestCase):
    def test_it_serves_the_queues_of_the_app_and_ends_at_sigterm_with_0_and_leaves_no_row(self) -> None:
        worker = self.start_worker()
        wait_until(models.Worker.objects.exists)
        # Those of TASKS, too, which Django 5.2 does not have.
        expected = {"default", "later"} | ({"mail"} if django.VERSION >= (6, 0) else set())
        self.assertEqual(set(models.Worker.objects.get().queues), expected)
        self.assertEqual(worker.stop(signal.SIGTERM), 0)
        self.assertNotIn("Traceback", worker.log)
        self.assertEqual(models.Worker.objects.count(), 0)

    def test_it_takes_all_options_of_a_worker_and_ends_at_sigint_with_0_and_leaves_no_row(self) -> None:
        options = ["--queue", "later", "--queue", "mail", "--slots", "3", "--fair", "--heartbeat-interval", "200ms"]
        options += ["--heartbeat-ttl", "4s", "--shutdown-timeout", "0.5", "--no-notify", "--log-level", "debug"]
        worker = self.start_worker(*options)
        wait_until(models.Worker.objects.exists)
        row = models.Worker.objects.get()
        self.assertEqual((set(row.queues), row.heartbeat_ttl.total_seconds()), ({"later", "mail"}, 4))
        self.assertEqual(worker.stop(signal.SIGINT), 0)
        self.assertNotIn("Traceback", worker.log)
        self.assertEqual(models.Worker.objects.count(), 0)

    def test_it_runs_tasks_on_a_pool_and_ends_as_it_should(self) -> None:
        jobs.count.using(session=connection).enqueue_many([{}] * 20)
        jobs.count_async.using(session=connection).enqueue_many([{}] * 20)
        pool = json.dumps({"pool": {"min_size": 1, "max_size": 4}})
        worker = self.start_worker("--slots", "4", SHOP_OPTIONS=pool)
        wait_until(lambda: Job.objects.filter(state="succeeded").count() == 40)
        self.assertEqual(worker.stop(), 0)
        self.assertNotIn("Traceback", worker.log)


class WrongUse(SimpleTestCase):
    databases = {"default"}  # noqa: RUF012 - as Django has it

    def test_it_is_told_before_anything_is_served(self) -> None:
        for options, words in (
            (["--slots", "0"], "slots is 0"),
            (["--poll-interval", "soon"], "'soon' is no duration"),
            (["--heartbeat-ttl", "1s"], "heartbeat_ttl is 0:00:01"),
            (["--log-level", "loud"], "invalid choice"),
            (["--reload"], "DEBUG"),
        ):
            with (
                self.subTest(options=options),
                mock.patch.object(logging.root, "handlers", [logging.NullHandler()]),
                mock.patch.object(logging, "lastResort", None),
                self.assertRaisesMessage(CommandError, words) as caught,
            ):
                call_command("akadze_worker", *options)
            self.assertIn(caught.exception.returncode, (1, 2))
