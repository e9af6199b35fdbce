"""Enqueue and drain in a TestCase: everything on Django's connection, nothing left behind."""

from __future__ import annotations

from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.test import TestCase

from akadze import AkadzeError, DuplicateJob, EnqueueError
from akadze.contrib.django.models import Job
from akadze.contrib.django.testing import assert_enqueued, drain
from shop import jobs
from shop.models import Note, Order

from .outside import counts


class _LeavesNothing(TestCase):
    def tearDown(self) -> None:
        # Whatever the tests do, in their transactions nobody else sees any of it.
        self.assertEqual(counts(), (0, 0, 0))

    def setUp(self) -> None:
        # Nor does the next test.
        self.assertEqual((Order.objects.count(), Note.objects.count(), Job.objects.count()), (0, 0, 0))


class Enqueue(_LeavesNothing):
    def test_a_view_enqueues_in_its_transaction_and_drain_runs_the_job_on_the_same_connection(self) -> None:
        response = self.client.post("/orders/", {"item": "tea"})
        self.assertEqual(response.status_code, 201)
        order = Order.objects.get(pk=int(response.content))
        assert_enqueued("confirm", arguments={"order_id": order.pk})
        assert_enqueued(jobs.confirm, arguments={"order_id": order.pk})
        self.assertEqual(counts(), (0, 0, 0))
        self.assertFalse(order.confirmed)
        drain()
        order.refresh_from_db()
        self.assertTrue(order.confirmed)
        self.assertEqual(Job.objects.get().state, "succeeded")

    def test_a_view_that_fails_after_the_enqueue_leaves_neither_order_nor_job(self) -> None:
        with self.assertRaisesMessage(RuntimeError, "after the enqueue"):
            self.client.post("/orders/", {"item": "tea", "then": "fail"})
        self.assertEqual((Order.objects.count(), Job.objects.count()), (0, 0))

    def test_an_inner_block_that_is_rolled_back_takes_its_job_with_it(self) -> None:
        jobs.note.using(session=connection).enqueue(text="outer")
        with self.assertRaises(KeyError), transaction.atomic():
            jobs.note.using(session=connections["default"]).enqueue(text="inner")
            raise KeyError
        drain()
        self.assertEqual([note.text for note in Note.objects.all()], ["outer"])

    def test_a_taken_unique_key_leaves_the_transaction_usable(self) -> None:
        bound = jobs.note.using(session=connection, unique_key="once")
        bound.enqueue(text="first")
        for kind in (DuplicateJob, EnqueueError, AkadzeError):
            with self.assertRaises(kind):
                bound.enqueue(text="second")
        self.assertEqual(Job.objects.count(), 1)

    def test_many_are_enqueued_in_their_order(self) -> None:
        jobs.note.using(session=connection).enqueue_many({"text": str(number)} for number in range(300))
        drain()
        self.assertEqual([note.text for note in Note.objects.order_by("pk")], [str(number) for number in range(300)])

    def test_refused_arguments_leave_the_transaction_usable(self) -> None:
        with self.assertRaises(EnqueueError):
            jobs.note.using(session=connection).enqueue(text="NUL \0")
        self.assertEqual(Job.objects.count(), 0)

    def test_a_database_of_another_vendor_is_refused(self) -> None:
        with self.assertRaisesMessage(EnqueueError, "sqlite"):
            jobs.note.using(session=connections["notes"])

    def test_assert_enqueued_tells_what_is_not_there(self) -> None:
        jobs.note.using(session=connection).enqueue(text="here")
        assert_enqueued("note", arguments={"text": "here"})
        for task, arguments in (("note", {"text": "there"}), ("count", None), ("nobody", None), ("note", {"x": 1})):
            with self.subTest(task=task, arguments=arguments), self.assertRaises(AssertionError):
                assert_enqueued(task, arguments=arguments)


class Drain(_LeavesNothing):
    def test_a_job_planned_for_later_stays_queued(self) -> None:
        jobs.note.using(session=connection, delay=timedelta(hours=1)).enqueue(text="later")
        drain()
        self.assertEqual((Job.objects.get().state, Note.objects.count()), ("queued", 0))

    def test_an_async_task_writes_on_the_connection_of_the_test(self) -> None:
        Note.objects.create(text="of the test")
        jobs.note_async.using(session=connection).enqueue(text="async")
        drain()
        job = Job.objects.get()
        self.assertEqual((job.state, job.result, job.errors), ("succeeded", 2, []))
        self.assertEqual(Note.objects.count(), 2)

    def test_what_a_task_has_written_before_an_error_of_its_own_stays_as_it_does_in_a_worker(self) -> None:
        jobs.note_and_fail.using(session=connection).enqueue(text="kept")
        drain()
        self.assertEqual(Job.objects.get().state, "failed")
        self.assertEqual(Note.objects.get().text, "kept")

    def test_an_error_of_the_database_fails_the_job_and_leaves_the_transaction_usable(self) -> None:
        Order.objects.create(item="tea")
        jobs.order_again.using(session=connection).enqueue(item="tea")
        jobs.note.using(session=connection).enqueue(text="after it")
        drain()
        failed = Job.objects.get(task="order again")
        self.assertEqual((failed.state, [entry["error"] for entry in failed.errors]), ("failed", ["IntegrityError"]))
        self.assertEqual([note.text for note in Note.objects.all()], ["after it"])

    def test_a_task_that_goes_on_after_an_error_of_the_database_fails_and_is_told_why(self) -> None:
        Order.objects.create(item="tea")
        jobs.order_again.using(session=connection).enqueue(item="tea", go_on=True)
        drain()
        [entry] = Job.objects.get().errors
        self.assertEqual(entry["error"], "AkadzeError")
        self.assertIn("atomic()", entry["message"])
        self.assertEqual(Order.objects.count(), 1)

    def test_a_retry_runs_again(self) -> None:
        jobs.retry_once.using(session=connection).enqueue()
        drain()
        self.assertEqual([note.text for note in Note.objects.order_by("pk")], ["attempt 0", "attempt 1"])
        self.assertEqual(Job.objects.get().run_count, 2)

    def test_the_connection_of_the_test_stays_open(self) -> None:
        # An error that Django remembers would have the connection closed after a request.
        with self.assertRaises(IntegrityError), transaction.atomic():
            Order.objects.create(item="tea")
            Order.objects.create(item="tea")
        before = connection.connection
        jobs.note.using(session=connection).enqueue(text="note")
        drain()
        self.assertIs(connection.connection, before)
        self.assertEqual(Note.objects.count(), 1)

    def test_callbacks_on_commit_run_where_the_test_runs_them(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            transaction.on_commit(lambda: jobs.note.using(session=connection).enqueue(text="on commit"))
            drain()
            self.assertEqual(Job.objects.count(), 0)
        self.assertEqual(len(callbacks), 1)
        drain()
        self.assertEqual(Note.objects.get().text, "on commit")

    async def test_an_async_test_drains_through_sync_to_async(self) -> None:
        await sync_to_async(jobs.note.using(session=connection).enqueue)(text="note")
        await sync_to_async(jobs.note_async.using(session=connection).enqueue)(text="async")
        await sync_to_async(drain)()
        self.assertEqual({note.text async for note in Note.objects.all()}, {"note", "async"})

    def test_too_small_a_limit_is_an_error(self) -> None:
        jobs.note.using(session=connection).enqueue_many([{"text": "a"}, {"text": "b"}])
        with self.assertRaisesMessage(AkadzeError, "limit"):
            drain(limit=1)

    def test_a_database_of_another_vendor_is_refused(self) -> None:
        with self.assertRaisesMessage(AkadzeError, "sqlite"):
            drain(using="notes")


class CompleteTx(_LeavesNothing):
    """In a worker, see tests_worker."""

    def test_success_and_writes_go_together(self) -> None:
        jobs.finish.using(session=connection).enqueue(text="note")
        drain()
        self.assertEqual((Job.objects.get().state, Note.objects.count()), ("succeeded", 1))

    def test_an_error_inside_undoes_the_writes(self) -> None:
        jobs.finish.using(session=connection).enqueue(text="note", then="raise inside")
        drain()
        self.assertEqual((Job.objects.get().state, Note.objects.count()), ("failed", 0))

    def test_an_error_after_it_undoes_nothing(self) -> None:
        jobs.finish.using(session=connection).enqueue(text="note", then="raise after")
        drain()
        self.assertEqual((Job.objects.get().state, Note.objects.count()), ("succeeded", 1))

    def test_it_is_refused_inside_another_block_as_in_a_worker(self) -> None:
        jobs.finish_inside.using(session=connection).enqueue()
        drain()
        job = Job.objects.get()
        self.assertEqual((job.state, job.errors[0]["error"], Note.objects.count()), ("failed", "AkadzeError", 0))
        self.assertIn("outermost", job.errors[0]["message"])

    def test_an_async_task_finishes_through_sync_to_async(self) -> None:
        jobs.finish_async.using(session=connection).enqueue(text="note", how="on Django's connection")
        drain()
        job = Job.objects.get()
        self.assertEqual((job.state, job.errors, Note.objects.count()), ("succeeded", [], 1))

    def test_akadzes_own_async_one_needs_a_drain_of_its_kind(self) -> None:
        jobs.finish_async.using(session=connection).enqueue(text="note", how="on akadze's")
        drain()
        job = Job.objects.get()
        self.assertEqual((job.state, Note.objects.count()), ("failed", 0))
        self.assertIn("a blocking session", job.errors[0]["message"])

    def test_hooks_on_transition_get_djangos_connection(self) -> None:
        seen = []

        def on_transition(given: object, job: object, before: str, after: str) -> None:
            seen.append((given is connections["default"], before, after, Note.objects.count()))

        jobs.app.hooks.on_transition.append(on_transition)
        self.addCleanup(jobs.app.hooks.on_transition.remove, on_transition)
        jobs.finish.using(session=connections["default"]).enqueue(text="note")
        drain()
        self.assertEqual(seen, [(True, "queued", "running", 0), (True, "running", "succeeded", 1)])
