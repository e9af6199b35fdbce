"""`world` is the database of this process with worker processes on it; `own_server` is a server to break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from akadze import dev
from tests.database import create_database
from tests.field.world import World
from tests.schema.conftest import role
from tests.servers import skip_without_programs
from tests.worker.conftest import serve, table

__all__ = ["role", "serve", "table"]


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url)
    yield world
    world.end()


@pytest.fixture
def own_server() -> Iterator[dev.Server]:
    """A PostgreSQL of this test alone, on TCP, to be stopped, killed and started again."""
    skip_without_programs()
    with dev.start(tcp=True) as server:
        yield server


@pytest.fixture
def own_world(tmp_path: Path, own_server: dev.Server) -> Iterator[World]:
    """A world on that server."""
    world = World(tmp_path, create_database(own_server.url(), "akadze_field_test"))
    yield world
    world.end()
