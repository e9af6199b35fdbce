"""What others see: a connection that is not Django's."""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import connection

from akadze._urls import libpq_url
from akadze.contrib.django import database_url


def rows(statement: str, *parameters: Any) -> list[Any]:
    """Return the committed rows, of the database of the test."""
    with psycopg.connect(libpq_url(database_url()), autocommit=True) as other:
        return other.execute(statement, parameters).fetchall()  # type: ignore[call-overload]  # of the tests alone


def counts() -> tuple[int, int, int]:
    """Return how many orders, notes and jobs are committed."""
    tables = ("shop_order", "shop_note", "akadze.jobs")
    return tuple(rows(f"select count(*) from {table}")[0][0] for table in tables)  # type: ignore[return-value]


def last_job_id() -> int:
    """Return the id of the job that Django's connection has enqueued last."""
    with connection.cursor() as cursor:
        cursor.execute("select max(id) from akadze.jobs")
        found: int = cursor.fetchone()[0]
        return found
