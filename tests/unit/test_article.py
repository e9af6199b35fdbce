"""How messages name a type."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import pytest

from akadze import AkadzeError
from akadze._article import with_article


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
