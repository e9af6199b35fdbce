"""How messages name a type, and show a value."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import pytest

from akadze import AkadzeError
from akadze._article import shown, with_article


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (str, "a str"),
        (int, "an int"),
        (UUID, "a UUID"),
        (datetime, "a datetime"),
        (AkadzeError, "an AkadzeError"),
        (type(None), "None"),
    ],
)
def test_a_type_has_the_article_that_is_said_before_it(kind: type, name: str) -> None:
    assert with_article(kind) == name


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("mail", "'mail'"),
        (7, "7"),
        (10**5000, "an int that cannot be shown"),
        (Hostile(), "a Hostile that cannot be shown"),
        ("x" * 500, "'" + "x" * 96 + "..."),
    ],
    ids=["text", "number", "digits", "hostile", "long"],
)
def test_a_value_is_shown_in_short_whatever_it_is(value: object, text: str) -> None:
    assert shown(value) == text
