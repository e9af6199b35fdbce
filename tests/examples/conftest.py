from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.database import skip_where_django_refuses
from tests.examples.example import Example

Rows = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> Iterator[Example]:
    """The example that the module of the test names in EXAMPLE."""
    if request.module.EXAMPLE == "django":
        skip_where_django_refuses(database_url)
    example = Example(request.module.EXAMPLE, tmp_path, database_url)
    yield example
    example.end()


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    """Look at what has been committed."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda statement: connection.execute(statement.encode()).fetchall()
