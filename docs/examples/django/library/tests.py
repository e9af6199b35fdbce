"""What happens to a loan. Nothing is committed: each test is rolled back, its jobs with it."""

from __future__ import annotations

from django.test import TestCase

from akadze.contrib.django.models import Job
from akadze.contrib.django.testing import assert_enqueued, drain
from library.models import Book, Loan


class Lend(TestCase):
    def setUp(self) -> None:
        Book.objects.create(title="emma", copies=1)

    def test_a_loan_is_confirmed(self) -> None:
        answer = self.client.post("/books/emma/loans?member=anna")
        self.assertEqual(answer.status_code, 201)
        loan = Loan.objects.get(pk=answer.json()["id"])
        assert_enqueued("confirm_loan", arguments={"loan_id": loan.pk})
        self.assertFalse(loan.confirmed)

        drain()
        loan.refresh_from_db()
        self.assertTrue(loan.confirmed)

    def test_a_book_that_is_gone_leaves_no_job(self) -> None:
        Book.objects.update(copies=0)
        self.assertEqual(self.client.post("/books/emma/loans?member=anna").status_code, 409)
        self.assertEqual((Loan.objects.count(), Job.objects.count()), (0, 0))
