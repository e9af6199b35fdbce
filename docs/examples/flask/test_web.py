"""What happens to a booking. Requests and tasks commit, so what they leave is deleted after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from models import db
from tasks import confirm_booking

from akadze.pytest_plugin import Jobs


@pytest.fixture
def client(akadze_jobs: Jobs) -> Iterator[FlaskClient]:
    from worker import web  # not before akadze_jobs has set the database

    with web.app_context():
        db.create_all()
    client = web.test_client()
    client.put("/courses/pottery?seats=1")
    yield client
    with web.app_context():
        db.drop_all()
        db.engine.dispose()


def test_a_booking_is_confirmed(client: FlaskClient, akadze_jobs: Jobs) -> None:
    answer = client.post("/courses/pottery/bookings", json={"email": "customer@example.org"})
    assert answer.status_code == 201
    booking_id = answer.get_json()["id"]
    akadze_jobs.assert_enqueued(confirm_booking, booking_id=booking_id)
    assert client.get(f"/bookings/{booking_id}").get_json()["confirmed"] is False

    akadze_jobs.drain()
    assert client.get(f"/bookings/{booking_id}").get_json()["confirmed"] is True


def test_a_booking_without_a_seat_leaves_no_job(client: FlaskClient, akadze_jobs: Jobs) -> None:
    client.put("/courses/pottery?seats=0")
    assert client.post("/courses/pottery/bookings", json={"email": "customer@example.org"}).status_code == 409
    akadze_jobs.refute_enqueued(confirm_booking)
