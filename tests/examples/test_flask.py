"""Contract, sections 2 and 5: the example for Flask, with requests that commit and roll back."""

from __future__ import annotations

import httpx

from tests.examples.conftest import Rows
from tests.examples.example import Example, address_of
from tests.waiting import wait_until

EXAMPLE = "flask"


def test_the_readme_can_be_followed(example: Example) -> None:
    assert example.commands == [
        "pip install -r requirements.txt",
        "pytest",
        "export AKADZE_DATABASE_URL=postgresql://akadze:akadze@localhost:5432/akadze",
        "akadze migrate",
        "flask --app web create-tables",
        "flask --app web run",
        "akadze worker worker:app",
    ]
    assert "2 passed" in example.run("pytest", database=False)


def test_a_booking_and_its_job_commit_or_roll_back_together(example: Example, rows: Rows) -> None:
    example.run("akadze migrate")
    example.run("flask --app web create-tables")
    web = example.start("flask --app web run", "--port", "0")
    with httpx.Client(base_url=address_of(web)) as client:
        assert client.put("/courses/pottery", params={"seats": 2}).status_code == 200
        answers = [
            client.post("/courses/pottery/bookings", json={"email": f"customer-{number}@example.org"})
            for number in range(4)
        ]
        assert [answer.status_code for answer in answers] == [201, 201, 409, 409]
        booked = [answer.json()["id"] for answer in answers[:2]]
        assert rows("select id, email, confirmed from bookings order by id") == [
            (booked[0], "customer-0@example.org", False),
            (booked[1], "customer-1@example.org", False),
        ]
        assert rows("select cast(args ->> 'booking_id' as integer), state from akadze.jobs order by id") == [
            (booked[0], "queued"),
            (booked[1], "queued"),
        ]

        worker = example.start("akadze worker worker:app", "--slots", "2")
        for booking_id in booked:
            wait_until(
                lambda booking_id=booking_id: client.get(f"/bookings/{booking_id}").json()["confirmed"], timeout=60
            )
        wait_until(lambda: rows("select count(*) from akadze.jobs where state = 'succeeded'") == [(2,)])
    assert rows("select result from akadze.jobs order by id") == [
        ("customer-0@example.org has a seat in pottery",),
        ("customer-1@example.org has a seat in pottery",),
    ]
    worker.terminate()
    assert worker.wait() == 0
    # Each app context gives its connection back, so none is left in a transaction.
    open_transactions = "datname = current_database() and state like 'idle in transaction%'"
    wait_until(lambda: rows(f"select count(*) from pg_stat_activity where {open_transactions}") == [(0,)])
