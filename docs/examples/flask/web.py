"""The web application of the courses: `flask --app web run`."""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, request
from models import Booking, Course, db
from sqlalchemy import update
from tasks import app, confirm_booking


def create_app() -> Flask:
    web = Flask(__name__)
    web.config["SQLALCHEMY_DATABASE_URI"] = app.sync_engine.url
    db.init_app(web)
    web.cli.command("create-tables")(db.create_all)
    web.put("/courses/<name>")(offer_course)
    web.post("/courses/<name>/bookings")(book_seat)
    web.get("/bookings/<int:booking_id>")(show_booking)
    return web


def offer_course(name: str) -> dict[str, str]:
    db.session.merge(Course(name=name, seats=int(request.args["seats"])))
    db.session.commit()
    return {"name": name}


def book_seat(name: str) -> tuple[dict[str, int], int]:
    booking = Booking(course=name, email=request.get_json()["email"])
    db.session.add(booking)
    db.session.flush()  # gives the booking its id
    confirm_booking.using(session=db.session).enqueue(booking_id=booking.id)
    one_less = update(Course).where(Course.name == name, Course.seats > 0).values(seats=Course.seats - 1)
    if db.session.execute(one_less.returning(Course.name)).first() is None:
        abort(409, "no seat is left")  # nothing is committed: no booking, no job
    db.session.commit()
    return {"id": booking.id}, 201


def show_booking(booking_id: int) -> dict[str, Any]:
    booking = db.get_or_404(Booking, booking_id)
    return {"course": booking.course, "email": booking.email, "confirmed": booking.confirmed}
