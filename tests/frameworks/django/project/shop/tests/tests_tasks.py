"""The backend for django.tasks: what Django promises of a backend, and what akadze adds."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.db import connection, transaction
from django.tasks import TaskResultStatus, default_task_backend, task, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.test import TestCase, override_settings
from django.utils import timezone

from akadze import AkadzeError, EnqueueError
from akadze.contrib.django.backend import AkadzeBackend
from akadze.contrib.django.models import Job
from akadze.contrib.django.testing import drain
from akadze.sync import request_cancel
from shop import django_tasks, jobs
from shop.models import Note

from .outside import rows
from .task_runs import drained

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
NAIVE = datetime(2030, 1, 1, 12)  # noqa: DTZ001 - naive is what is tested


class Backend(TestCase):
    def test_it_is_the_default_here_and_supports_everything(self) -> None:
        backend = task_backends["default"]
        self.assertIsInstance(backend, AkadzeBackend)
        for feature in ("defer", "async_task", "get_result", "priority"):
            self.assertTrue(getattr(backend, f"supports_{feature}"), feature)
        self.assertEqual(backend.check(), [])

    def test_an_enqueued_task_is_ready_and_its_result_can_be_read(self) -> None:
        before = timezone.now()
        result = django_tasks.add.enqueue(1, right=2)
        self.assertEqual((result.status, result.args, result.kwargs), (READY, [1], {"right": 2}))
        self.assertEqual((result.backend, result.task, result.errors), ("default", django_tasks.add, []))
        self.assertEqual((result.attempts, result.worker_ids, result.is_finished), (0, [], False))
        self.assertIsNone(result.started_at)
        self.assertIsNone(result.finished_at)
        self.assertIsNone(result.last_attempted_at)
        self.assertLessEqual(before, result.enqueued_at)
        self.assertLessEqual(result.enqueued_at, timezone.now())
        self.assertLess(len(result.id), 64)
        with self.assertRaisesMessage(ValueError, "has not finished"):
            _ = result.return_value
        self.assertEqual(default_task_backend.get_result(result.id), result)
        self.assertEqual(django_tasks.add.get_result(result.id), result)

    def test_a_task_runs_and_its_value_is_read_after_a_refresh(self) -> None:
        for of in (django_tasks.add, django_tasks.add_async):
            with self.subTest(task=of):
                result = of.enqueue(3, right=4)
                drain()
                self.assertEqual(result.status, READY)
                result.refresh()
                self.assertEqual((result.status, result.return_value, result.errors), (SUCCESSFUL, 7, []))
                self.assertEqual((result.attempts, result.is_finished), (1, True))
                self.assertLessEqual(result.started_at, result.finished_at)
                self.assertEqual(result.last_attempted_at, result.started_at)
                self.assertTrue(timezone.is_aware(result.enqueued_at))

    def test_everything_works_from_async_code(self) -> None:
        async def enqueue_and_read() -> Any:
            result = await django_tasks.add.aenqueue(1, 1)
            again = await default_task_backend.aget_result(result.id)
            self.assertEqual(again, await django_tasks.add.aget_result(result.id))
            await again.arefresh()
            return again

        result = async_to_sync(enqueue_and_read)()
        self.assertEqual(result.status, READY)
        drain()
        async_to_sync(result.arefresh)()
        self.assertEqual(result.return_value, 2)

    def test_priority_queue_and_time_are_those_of_the_job(self) -> None:
        when = timezone.now() + timedelta(hours=1)
        changed = django_tasks.add.using(priority=-100, queue_name="mail", run_after=when)
        result = changed.enqueue(1)
        job = Job.objects.get()
        self.assertEqual((job.priority, job.queue, job.run_at), (-100, "mail", when))
        self.assertEqual(default_task_backend.get_result(result.id).task, changed)
        drain()
        self.assertEqual(Job.objects.get().state, "queued")

    def test_higher_priorities_run_first(self) -> None:
        for priority in (-100, 0, 100):
            django_tasks.note.using(priority=priority).enqueue(str(priority))
        drain()
        self.assertEqual([note.text for note in Note.objects.order_by("pk")], ["100", "0", "-100"])

    def test_a_naive_time_is_taken_where_the_project_has_no_time_zones(self) -> None:
        with override_settings(USE_TZ=False):
            result = django_tasks.add.using(run_after=NAIVE).enqueue(1)
            self.assertEqual(default_task_backend.get_result(result.id).task.run_after, NAIVE)
        run_at = Job.objects.get().run_at
        self.assertEqual(run_at, timezone.make_aware(NAIVE))

    def test_wrong_tasks_are_refused(self) -> None:
        for change in (
            {"priority": 101},
            {"priority": -101},
            {"priority": 1.5},
            {"queue_name": "unknown"},
            {"run_after": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive is what is tested,
        ):
            with self.subTest(change=change), self.assertRaises(InvalidTask):
                django_tasks.add.using(**change)
        with self.assertRaises(InvalidTask):
            task(lambda: None)
        with self.assertRaises(TypeError):
            task(run_after=timezone.now())(django_tasks.no_task)

    def test_arguments_are_json_by_djangos_rules_and_what_no_json_holds_is_refused(self) -> None:
        result = drained(django_tasks.echo, (1, 2), b"bytes", text="é", nested={"a": [None, True, 1.5]})
        self.assertEqual(result.return_value, [[[1, 2], "bytes"], {"text": "é", "nested": {"a": [None, True, 1.5]}}])
        for wrong in (object(), {1, 2}, uuid.uuid4(), timezone.now()):
            with self.subTest(wrong=wrong), self.assertRaises(TypeError):
                django_tasks.echo.enqueue(wrong)
        with self.assertRaises(ValueError):
            django_tasks.echo.enqueue(b"\xff")
        for wrong in (float("nan"), "NUL \0", {1: "key"}, "\ud800"):
            with self.subTest(wrong=wrong), self.assertRaises(EnqueueError):
                django_tasks.echo.enqueue(value=wrong)
        self.assertEqual(Job.objects.count(), 1)

    def test_a_result_that_does_not_exist_is_an_error(self) -> None:
        jobs.note.using(session=connection).enqueue(text="a job of akadze's own is no task of Django")
        own = str(Job.objects.get().pk)
        for wrong in (own, "0", "999999", "-1", "9" * 40, "", "abc", "1.5", " 1", "\u0661", str(uuid.uuid4())):
            with self.subTest(id=wrong), self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(wrong)
        result = django_tasks.add.enqueue(1)
        with self.assertRaises(TaskResultMismatch):
            django_tasks.note.get_result(result.id)

    def test_it_takes_part_in_the_transaction(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            django_tasks.add.enqueue(1)
            raise KeyError
        self.assertEqual(Job.objects.count(), 0)
        django_tasks.add.enqueue(1)
        self.assertEqual((Job.objects.count(), rows("select count(*) from akadze.jobs")), (1, [(0,)]))

    def test_its_tasks_can_be_found_by_their_path(self) -> None:
        django_tasks.add.enqueue(1)
        self.assertEqual(Job.objects.get(meta__django_task="shop.django_tasks.add").task, "django.task")

    def test_options_are_checked(self) -> None:
        for options, number, words in (
            ({"databse": "default"}, "akadze.E004", "'databse'"),
            ({"database": "notes"}, "akadze.E004", "sqlite"),
            ({"database": "nowhere"}, "akadze.E004", "'nowhere'"),
        ):
            tasks = {"default": {"BACKEND": "akadze.contrib.django.backend.AkadzeBackend", "OPTIONS": options}}
            with self.subTest(options=options), override_settings(TASKS=tasks):
                [message] = [found for found in run_checks() if str(found.id).startswith("akadze")]
                self.assertEqual(message.id, number)
                self.assertIn(words, message.msg)

    databases = {"default", "notes"}  # noqa: RUF012 - as Django has it


class Failures(TestCase):
    def test_an_error_is_told_with_its_class_and_traceback(self) -> None:
        for of in (django_tasks.trouble, django_tasks.trouble_async):
            with self.subTest(task=of):
                result = drained(of.using(max_attempts=1), "the text")
                self.assertEqual((result.status, result.attempts, len(result.errors)), (FAILED, 1, 1))
                [error] = result.errors
                self.assertEqual(error.exception_class_path, "shop.django_tasks.Trouble")
                self.assertIs(error.exception_class, django_tasks.Trouble)
                self.assertTrue(error.traceback.startswith("Traceback (most recent call last):\n"))
                self.assertIn("in trouble", error.traceback)
                self.assertTrue(error.traceback.rstrip().endswith("Trouble: the text"))
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    _ = result.return_value

    def test_attempts_that_are_left_make_it_ready_again(self) -> None:
        result = django_tasks.trouble.using(max_attempts=3).enqueue("again")
        drain()
        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), (READY, 1, 1))
        self.assertIsNone(result.finished_at)

    def test_a_value_that_is_no_json_is_an_error(self) -> None:
        result = drained(django_tasks.not_json.using(max_attempts=1))
        self.assertEqual((result.status, result.errors[0].exception_class), (FAILED, TypeError))

    def test_outcomes_of_akadze_end_a_task_as_they_end_a_job(self) -> None:
        for how, status, path in (
            ("fail", FAILED, "akadze.Fail"),
            ("cancel", FAILED, "akadze.Cancel"),
            ("snooze", READY, None),
            ("exit", READY, "builtins.SystemExit"),
        ):
            with self.subTest(how=how):
                result = drained(django_tasks.end, how)
                self.assertEqual(result.status, status)
                self.assertEqual([error.exception_class_path for error in result.errors], [path] if path else [])
                self.assertTrue(all(error.exception_class for error in result.errors))

    def test_a_cancelled_or_expired_task_has_failed_and_says_why(self) -> None:
        cancelled, expired = django_tasks.add.enqueue(1), django_tasks.add.enqueue(2)
        request_cancel(connection, int(cancelled.id))
        with connection.cursor() as cursor:
            cursor.execute("update akadze.jobs set expires_at = '2000-01-01' where id = %s", [int(expired.id)])
        drain()
        for result, words in ((cancelled, "asked for"), (expired, "expired")):
            result.refresh()
            self.assertEqual((result.status, result.attempts), (FAILED, 0))
            [error] = result.errors
            self.assertEqual(error.exception_class_path, "akadze.Cancel")
            self.assertIn(words, error.traceback)

    def test_a_lost_worker_is_an_error_that_can_be_resolved(self) -> None:
        result = django_tasks.add.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute(
                "update akadze.jobs set state = 'failed', run_count = 1, finished_at = now(),"
                """ errors = '[{"error": "WorkerLost", "message": "gone", "at": ""}]'"""
            )
        result.refresh()
        self.assertIs(result.errors[0].exception_class, AkadzeError)

    def test_nothing_but_a_task_is_run(self) -> None:
        result = django_tasks.note.using(max_attempts=1).enqueue("never")
        path = "shop.django_tasks.no_task"
        with connection.cursor() as cursor:
            cursor.execute("update akadze.jobs set args = args || jsonb_build_object('path', cast(%s as text))", [path])
        drain()
        job = Job.objects.get(pk=int(result.id))
        self.assertEqual((job.state, job.errors[0]["error"], Note.objects.count()), ("failed", "AkadzeError", 0))
        self.assertIn(path, job.errors[0]["message"])


class Context(TestCase):
    def test_a_task_that_takes_the_context_sees_its_attempt_and_result(self) -> None:
        result = drained(django_tasks.attempts, until=3)
        self.assertEqual(result.return_value, [3, result.id, "RUNNING", "shop.django_tasks.attempts", 3])
        self.assertEqual((result.attempts, len(result.errors)), (3, 2))
        self.assertEqual(drained(django_tasks.attempts_async).return_value, 1)

    def test_while_it_runs_the_result_is_running_with_its_worker(self) -> None:
        result = django_tasks.add.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("update akadze.jobs set state = 'running', run_count = 2, worker_id = gen_random_uuid()")
        result.refresh()
        self.assertEqual((result.status, result.attempts), (RUNNING, 2))
        self.assertEqual(result.worker_ids, ["unknown", str(Job.objects.get().worker_id)])
