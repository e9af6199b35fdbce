"""What akadze adds to django.tasks, its signals in a run, and a worker that runs tasks."""

from __future__ import annotations

import pickle
from typing import Any
from unittest import mock

import django
from django.db import connection, transaction
from django.tasks import TaskResultStatus, default_task_backend, task
from django.tasks.signals import task_finished, task_started
from django.test import TestCase, override_settings

from akadze import Akadze, AkadzeError, DuplicateJob, EnqueueError
from akadze.contrib.django import database_url, get_app, install
from akadze.contrib.django.backend import AkadzeTask
from akadze.contrib.django.models import Job
from akadze.contrib.django.testing import drain
from akadze.sync import set_limit
from shop import django_tasks
from shop.models import Note

from .task_runs import drained, signals
from .worker import WorkerTestCase, wait_until

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


class Signals(TestCase):
    def test_they_tell_of_each_step(self) -> None:
        sender = type(default_task_backend._connections[default_task_backend._alias])
        for of in (django_tasks.add, django_tasks.add_async):
            with self.subTest(task=of), signals() as told:
                of.enqueue(1)
                self.assertEqual(told, [("enqueued", sender, READY)])
                drain()
                expected = [("started", sender, RUNNING), ("finished", sender, SUCCESSFUL)]
                self.assertEqual(told[1:], expected)

    def test_only_the_last_attempt_is_the_end(self) -> None:
        with signals() as told:
            drained(django_tasks.attempts, until=2)
            drained(django_tasks.trouble.using(max_attempts=1), "text")
            drained(django_tasks.trouble_async.using(max_attempts=1), "text")
            drained(django_tasks.end, "fail")
            drained(django_tasks.end, "snooze")
        finished = [status for name, _, status in told if name == "finished"]
        self.assertEqual(finished, [SUCCESSFUL, FAILED, FAILED, FAILED])
        self.assertEqual(len([name for name, _, _ in told if name == "started"]), 6)

    def test_the_end_tells_value_and_errors(self) -> None:
        seen: list[Any] = []

        def receive(task_result: Any, **_: Any) -> None:
            seen.append(task_result)

        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        drained(django_tasks.add, 1)
        drained(django_tasks.trouble.using(max_attempts=1), "text")
        self.assertEqual(seen[0].return_value, 2)
        self.assertEqual([error.exception_class for error in seen[1].errors], [django_tasks.Trouble])
        self.assertIsNotNone(seen[1].finished_at)

    def test_a_receiver_that_fails_in_a_worker_does_not_fail_the_task(self) -> None:
        def receive(**_: Any) -> None:
            raise RuntimeError("of the receiver")

        for signal in (task_started, task_finished):
            signal.connect(receive)
            self.addCleanup(signal.disconnect, receive)
        self.assertEqual(drained(django_tasks.add, 1).return_value, 2)
        self.assertEqual(drained(django_tasks.add_async, 1).return_value, 2)


class OwnOptions(TestCase):
    def test_a_task_has_akadzes_options(self) -> None:
        self.assertIsInstance(django_tasks.add, AkadzeTask)
        changed = django_tasks.add.using(limit_key="k", unique_key="u", max_attempts=5, priority=2)
        self.assertEqual((changed.limit_key, changed.unique_key, changed.max_attempts), ("k", "u", 5))
        again = changed.using(max_attempts=6)
        self.assertEqual((again.limit_key, again.max_attempts, again.priority), ("k", 6, 2))
        if django.VERSION >= (6, 1):
            self.assertEqual(pickle.loads(pickle.dumps(again)), again)
        result = changed.enqueue(1)
        job = Job.objects.get()
        self.assertEqual((job.limit_key, job.unique_key, job.max_attempts), ("k", "u", 5))
        self.assertEqual(default_task_backend.get_result(result.id), result)
        self.assertEqual(default_task_backend.get_result(result.id).task, changed)

    def test_a_running_task_sees_its_options(self) -> None:
        result = drained(django_tasks.options.using(limit_key="k", unique_key="u", max_attempts=5))
        self.assertEqual(result.return_value, ["k", "u", 5])
        self.assertEqual(drained(django_tasks.options).return_value, [None, None, None])

    def test_the_decorator_takes_them_from_django_6_1_on(self) -> None:
        if django.VERSION < (6, 1):
            self.skipTest("Django 6.0 does not pass the decorator's options on")
        decorated = task(limit_key="k", max_attempts=1)(django_tasks.no_task)
        self.assertEqual((decorated.limit_key, decorated.max_attempts), ("k", 1))

    def test_a_taken_unique_key_raises_and_leaves_the_transaction_usable(self) -> None:
        once = django_tasks.add.using(unique_key="u")
        once.enqueue(1)
        with self.assertRaises(DuplicateJob):
            once.enqueue(2)
        self.assertEqual(Job.objects.count(), 1)

    def test_the_attempts_of_the_options_are_for_tasks_that_say_nothing(self) -> None:
        self.assertEqual(self.attempts_of(django_tasks.add), 3)
        tasks = {
            "default": {"BACKEND": "akadze.contrib.django.backend.AkadzeBackend", "OPTIONS": {"max_attempts": 1}},
        }
        with override_settings(TASKS=tasks):
            self.assertEqual(self.attempts_of(django_tasks.add), 1)
            self.assertEqual(self.attempts_of(django_tasks.add.using(max_attempts=4)), 4)

    def attempts_of(self, of: Any) -> int:
        found: int = Job.objects.get(pk=int(of.enqueue(1).id)).max_attempts
        return found

    def test_wrong_options_are_refused(self) -> None:
        for change in ({"max_attempts": 0}, {"unique_key": "x" * 600}, {"limit_key": 7}):
            with self.subTest(change=change), self.assertRaises(EnqueueError):
                django_tasks.add.using(**change).enqueue(1)

    def test_complete_tx_finishes_a_task(self) -> None:
        with signals() as told:
            results = [drained(django_tasks.finish, "a"), drained(django_tasks.finish, "b", then="raise")]
        for result in results:
            self.assertEqual((result.status, result.return_value, result.errors), (SUCCESSFUL, None, []))
        self.assertEqual([status for name, _, status in told if name == "finished"], [SUCCESSFUL, SUCCESSFUL])
        self.assertEqual(Note.objects.count(), 2)

    def test_without_an_app_of_its_own_a_project_needs_only_the_backend(self) -> None:
        with override_settings(AKADZE={}):
            self.assertEqual(drained(django_tasks.add, 1).return_value, 2)
            self.assertEqual(sorted(get_app().tasks), ["django.async_task", "django.task"])

    def test_an_app_whose_project_has_another_backend_gets_no_tasks(self) -> None:
        other = Akadze(database_url=database_url)
        immediate = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
        with override_settings(TASKS=immediate):
            install(other)
        self.assertEqual(other.tasks, {})

    def test_limits_hold_for_tasks(self) -> None:
        set_limit(connection, "k", 0)
        django_tasks.add.using(limit_key="k").enqueue(1)
        with mock.patch("akadze._sync.drain.drain_pause_sync"), self.assertRaises(AkadzeError):
            drain(limit=3)


class InAWorker(WorkerTestCase):
    def test_a_worker_runs_tasks_of_both_kinds_and_all_queues(self) -> None:
        results = [
            django_tasks.note.enqueue("plain"),
            django_tasks.note_async.enqueue("async"),
            django_tasks.add_async.enqueue(1),
            django_tasks.attempts.enqueue(until=2),
            django_tasks.finish.enqueue("with complete_tx"),
            django_tasks.trouble.using(max_attempts=1).enqueue("text"),
        ]
        with self.assertRaises(KeyError), transaction.atomic():
            django_tasks.note.enqueue("never")
            raise KeyError
        worker = self.start_worker("--slots", "4")

        def ended() -> bool:
            for result in results:
                result.refresh()
            return all(result.is_finished for result in results)

        wait_until(ended)
        self.assertEqual([result.status for result in results], [SUCCESSFUL] * 5 + [FAILED])
        self.assertEqual((results[2].return_value, results[3].attempts), (2, 2))
        self.assertIs(results[5].errors[0].exception_class, django_tasks.Trouble)
        self.assertEqual({note.text for note in Note.objects.all()}, {"plain", "async", "with complete_tx"})
        self.assertEqual(Job.objects.count(), len(results))
        self.assertEqual(worker.stop(), 0)
        # Nothing in the app has the queue mail; TASKS has.
        self.assertIn("serves queues 'default', 'later', 'mail'", worker.log)
        self.assertNotIn("check the name", worker.log)
