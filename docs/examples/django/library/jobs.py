"""The app, which AKADZE["APP"] names, and its tasks."""

from __future__ import annotations

from akadze import Akadze
from akadze.contrib.django import complete_tx, database_url
from library.models import Loan

app = Akadze(database_url=database_url())


@app.task("confirm_loan", queue="mail", max_attempts=5)
def confirm_loan(loan_id: int) -> None:
    loan = Loan.objects.select_related("book").get(pk=loan_id)
    # The mail would be sent here.
    with complete_tx():
        loan.confirmed = True
        loan.save()
