"""Contract, sections 3 and 7: what errors of the database mean, whoever has wrapped them."""

from __future__ import annotations

import psycopg
import pytest
from django.db.utils import IntegrityError
from sqlalchemy import exc

from akadze._sqlstates import UNIQUE_VIOLATION, driver_error, sqlstate


def of_sqlalchemy(error: Exception) -> Exception:
    return exc.IntegrityError("insert", {}, error)


def of_django(error: Exception) -> Exception:
    try:
        raise IntegrityError(*error.args) from error
    except IntegrityError as wrapped:
        return wrapped


@pytest.mark.parametrize("wrap", [lambda error: error, of_sqlalchemy, of_django])
def test_the_code_of_an_error_is_found_below_its_wrapper(wrap: object) -> None:
    error = psycopg.errors.UniqueViolation("taken")
    assert callable(wrap)
    assert driver_error(wrap(error)) is error
    assert sqlstate(wrap(error)) == UNIQUE_VIOLATION
