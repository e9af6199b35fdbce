"""The fixtures of the tests of the worker: `table` reads the rows, `serve` starts workers in the test's own loop.

`distant` is an app that meets the database through `proxy`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from akadze import Akadze
from tests.worker.proxy import Proxy, proxied
from tests.worker.serving import Serve, workers
from tests.worker.table import Table, open_table


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[Table]:
    async with open_table(database_url) as table:
        yield table


@pytest.fixture
async def serve(app: Akadze, table: Table) -> AsyncIterator[Serve]:
    async with workers(app, table) as serve:
        yield serve


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as proxy:
        yield proxy


@pytest.fixture
async def distant(proxy: Proxy) -> AsyncIterator[Akadze]:
    """An app that meets the database through the proxy."""
    app = Akadze(database_url=proxy.url)
    yield app
    await app.aclose()
