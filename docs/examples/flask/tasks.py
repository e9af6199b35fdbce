"""The tasks of the courses. They run in an app context, see worker.py."""

from __future__ import annotations

import os

from models import Booking, db

from akadze import Akadze

# A function, so that the URL is looked up when it is needed: tests set it after this module was imported.
app = Akadze(database_url=lambda: os.environ["AKADZE_DATABASE_URL"])


@app.task("confirm_booking", queue="mail", max_attempts=5)
def confirm_booking(booking_id: int) -> str:
    booking = db.session.get_one(Booking, booking_id)
    # The mail would be sent here.
    booking.confirmed = True
    db.session.commit()
    return f"{booking.email} has a seat in {booking.course}"
