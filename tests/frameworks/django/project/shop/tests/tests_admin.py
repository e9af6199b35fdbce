"""The admin, as a browser sees it."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from akadze.contrib.django import admin as akadze_admin
from akadze.contrib.django.models import Job
from akadze.sync import pause_queue, request_cancel, set_limit
from shop import jobs

JOBS = "/admin/akadze/job/"


def _enqueue(task: Any = jobs.note, **options: Any) -> int:
    arguments = options.pop("arguments", {"text": "the argument"})
    task.using(session=connection, **options).enqueue(**arguments)
    found: int = Job.objects.latest("id").pk
    return found


def _fail(job_id: int, *errors: dict[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "update akadze.jobs set state = 'failed', attempt = max_attempts, finished_at = now(),"
            " errors = cast(%s as jsonb) where id = %s",
            [json.dumps(errors), job_id],
        )


def _main(response: Any) -> str:
    """The part of a page that differs from others."""
    page: str = response.content.decode()
    return page[page.index("<main") : page.index("</main>")]


class AdminTestCase(TestCase):
    def sign_in(self, *permissions: str, superuser: bool = False) -> User:
        user = User.objects.create_user("anna", is_staff=True, is_superuser=superuser)
        for permission in permissions:
            user.user_permissions.add(Permission.objects.get(content_type__app_label="akadze", codename=permission))
        self.client.force_login(user)
        return user

    def page(self, path: str, **given: Any) -> str:
        response = self.client.get(path, given)
        self.assertEqual(response.status_code, 200, path)
        return _main(response)

    def act(self, action: str, *job_ids: int) -> str:
        response = self.client.post(JOBS, {"action": action, "_selected_action": job_ids}, follow=True)
        self.assertEqual(response.status_code, 200)
        return _main(response)

    def ids(self, **given: Any) -> set[int]:
        response = self.client.get(JOBS, given)
        self.assertEqual(response.status_code, 200, given)
        return {job.pk for job in response.context["cl"].result_list}


class Lists(AdminTestCase):
    def test_a_list_shows_no_arguments_results_or_errors_and_does_not_read_them(self) -> None:
        self.sign_in("view_job")
        _fail(_enqueue(), {"error": "KeyError", "message": "the message", "at": "2030-01-01T00:00:00+00:00"})
        with CaptureQueriesContext(connection) as queries:
            page = self.page(JOBS)
        for secret in ("the argument", "the message", "KeyError"):
            self.assertNotIn(secret, page)
        read = [query["sql"] for query in queries if '"akadze"."jobs"' in query["sql"]]
        self.assertTrue(read)
        for sql in read:
            for column in ("args", "result", "errors"):
                self.assertNotIn(f'"{column}"', sql)

    def test_filters_keep_jobs_of_a_state_a_queue_and_a_task(self) -> None:
        self.sign_in("view_job")
        note, later = _enqueue(), _enqueue(jobs.note_async)
        failed = _enqueue()
        _fail(failed)
        page = self.page(JOBS)
        for offered in ("?state__exact=failed", "?queue=later", "?task=note+later"):
            self.assertIn(offered, page)
        self.assertEqual(self.ids(), {note, later, failed})
        self.assertEqual(self.ids(state__exact="failed"), {failed})
        self.assertEqual(self.ids(queue="later"), {later})
        self.assertEqual(self.ids(task="note"), {note, failed})
        self.assertEqual(self.ids(task="note", state__exact="queued"), {note})
        # A name that has no jobs any more is still the one that is chosen.
        self.assertIn("?queue=gone", self.page(JOBS, queue="gone"))

    def test_a_search_finds_an_id_and_the_beginning_of_a_key(self) -> None:
        self.sign_in("view_job")
        plain = _enqueue()
        unique, limited = _enqueue(unique_key="order-7"), _enqueue(limit_key="order-8")
        number = _enqueue(unique_key=f"{plain}-th")
        self.assertEqual(self.ids(q=str(plain)), {plain, number})
        self.assertEqual(self.ids(q="order-"), {unique, limited})
        self.assertEqual(self.ids(q=" order-7 "), {unique})
        for nothing in ("rder", "order_", "ORDER-7", "9" * 40, "\u0667", "%"):
            self.assertEqual(self.ids(q=nothing), set(), nothing)

    def test_a_list_counts_no_more_than_it_shows(self) -> None:
        self.sign_in("view_job")
        jobs.note.using(session=connection).enqueue_many({"text": "note"} for _ in range(120))
        with mock.patch.object(akadze_admin, "_MOST_COUNTED", 110), CaptureQueriesContext(connection) as queries:
            self.assertEqual(len(self.ids()), 100)
        counting = [query["sql"] for query in queries if "COUNT(" in query["sql"] and "jobs" in query["sql"]]
        self.assertEqual(len(counting), 1)
        self.assertIn("LIMIT 110", counting[0])

    def test_all_models_can_be_looked_at(self) -> None:
        self.sign_in(superuser=True)
        set_limit(connection, "the limit", 3)
        pause_queue(connection, "the queue")
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
                " values (gen_random_uuid(), 'the host', 7, '{mail}', interval '3 s')"
            )
        self.assertIn("the limit", self.page("/admin/akadze/limit/"))
        self.assertIn("the queue", self.page("/admin/akadze/queuepause/"))
        self.assertIn("the host", self.page("/admin/akadze/worker/"))
        self.page("/admin/akadze/limit/the%20limit/change/")
        self.page("/admin/akadze/queuepause/the%20queue/change/")


class OneJob(AdminTestCase):
    def test_its_page_shows_each_error_with_its_whole_message_escaped(self) -> None:
        self.sign_in("view_job")
        job_id = _enqueue()
        _fail(
            job_id,
            {"error": "KeyError", "message": "first\nline two", "at": "2030-01-01T00:00:00+00:00"},
            {"error": "ValueError", "message": "<script>", "at": "2030-01-02T00:00:00+00:00"},
        )
        page = self.page(f"{JOBS}{job_id}/change/")
        self.assertIn("first\nline two</pre>", page)
        self.assertIn("<strong>ValueError</strong>", page)
        self.assertIn("&lt;script&gt;</pre>", page)
        self.assertLess(page.index("KeyError"), page.index("ValueError"))
        self.assertIn("the argument", page)

    def test_nobody_can_add_change_or_delete(self) -> None:
        self.sign_in(superuser=True)
        job_id = _enqueue()
        page = self.page(f"{JOBS}{job_id}/change/")
        self.assertNotIn('name="_save"', page)
        self.assertNotIn("/delete/", page)
        for path in (f"{JOBS}add/", f"{JOBS}{job_id}/delete/"):
            self.assertEqual(self.client.post(path, {"post": "yes"}).status_code, 403)
        self.assertEqual(self.client.post(f"{JOBS}{job_id}/change/", {"state": "failed"}).status_code, 403)
        self.assertNotIn("delete_selected", self.page(JOBS))
        self.assertEqual(Job.objects.get().state, "queued")

    def test_a_stranger_sees_nothing(self) -> None:
        job_id = _enqueue()
        for path in (JOBS, f"{JOBS}{job_id}/change/"):
            self.assertEqual(self.client.get(path).status_code, 302)
        self.sign_in()
        for path in (JOBS, f"{JOBS}{job_id}/change/"):
            self.assertEqual(self.client.get(path).status_code, 403)


class Actions(AdminTestCase):
    def test_requeue_puts_failed_jobs_back_and_tells_of_the_others(self) -> None:
        user = self.sign_in("view_job", "requeue_job")
        first, second, queued = _enqueue(), _enqueue(), _enqueue()
        _fail(first)
        _fail(second)
        page = self.act("requeue", first, second, queued)
        self.assertIn("2 jobs requeued.", page)
        self.assertIn(f"{queued} is queued: only a failed job can be requeued", page)
        self.assertEqual({job.state for job in Job.objects.all()}, {"queued"})
        self.assertEqual(Job.objects.get(pk=first).max_attempts, Job.objects.get(pk=queued).max_attempts + 1)
        entries = LogEntry.objects.filter(user=user, object_id__in=[str(first), str(second)])
        self.assertEqual({entry.get_change_message() for entry in entries}, {"Job requeued."})
        self.assertEqual(len(entries), 2)

    def test_request_cancel_marks_jobs_and_tells_of_ended_ones(self) -> None:
        self.sign_in("view_job", "cancel_job")
        queued, failed = _enqueue(), _enqueue()
        _fail(failed)
        page = self.act("request_cancel", queued, failed)
        self.assertIn("1 job asked to cancel.", page)
        self.assertIn(f"{failed} is failed: only", page)
        self.assertIsNotNone(Job.objects.get(pk=queued).cancel_requested_at)
        self.assertIsNone(Job.objects.get(pk=failed).cancel_requested_at)

    def test_a_taken_unique_key_refuses_one_job_and_leaves_the_others_requeued(self) -> None:
        self.sign_in("view_job", "requeue_job")
        first, second = _enqueue(unique_key="u"), _enqueue()
        _fail(first)
        _fail(second)
        _enqueue(unique_key="u")
        page = self.act("requeue", first, second)
        self.assertIn("1 job requeued.", page)
        self.assertIn("holds its unique_key", page)
        self.assertEqual([job.state for job in Job.objects.order_by("id")], ["failed", "queued", "queued"])

    def test_an_error_of_the_database_undoes_the_whole_action(self) -> None:
        self.sign_in("view_job", "requeue_job")
        first, second = _enqueue(), _enqueue()
        _fail(first)
        _fail(second)
        with (
            mock.patch.object(akadze_admin.JobAdmin, "log_change", side_effect=[None, RuntimeError("no log")]),
            self.assertRaisesMessage(RuntimeError, "no log"),
        ):
            self.act("requeue", first, second)
        self.assertEqual({job.state for job in Job.objects.all()}, {"failed"})

    def test_only_a_few_refusals_are_told_one_by_one(self) -> None:
        self.sign_in("view_job", "requeue_job")
        page = self.act("requeue", *[_enqueue() for _ in range(14)])
        self.assertEqual(page.count("only a failed job can be requeued"), 10)
        self.assertIn("4 more could not be requeued either", page)

    def test_each_action_needs_its_permission(self) -> None:
        self.sign_in("view_job", "requeue_job")
        job_id = _enqueue()
        page = self.page(JOBS)
        self.assertIn('value="requeue"', page)
        self.assertNotIn('value="request_cancel"', page)
        self.act("request_cancel", job_id)
        self.assertIsNone(Job.objects.get().cancel_requested_at)
        User.objects.all().delete()
        self.sign_in("view_job", "cancel_job")
        request_cancel(connection, job_id)
        self.assertNotIn('value="requeue"', self.page(JOBS))
        _fail(job_id)
        self.act("requeue", job_id)
        self.assertEqual(Job.objects.get().state, "failed")
