"""Django's connection, inside its atomic blocks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict

from tests.connections.caller import Caller, Row, SyncCaller
from tests.database import skip_where_django_refuses


class DjangoCaller(SyncCaller):
    """Each transaction is an atomic block, which is entered again after its end."""

    def begin(self) -> None:
        self._block = transaction.atomic()
        self._block.__enter__()

    def _execute(self, statement: str) -> list[Row]:
        with self.session.cursor() as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    async def commit(self) -> None:
        self._block.__exit__(None, None, None)
        self.begin()

    async def rollback(self) -> None:
        self.end()
        self.begin()

    def end(self) -> None:
        transaction.set_rollback(True)
        self._block.__exit__(None, None, None)

    def _savepoint(self) -> Any:
        return transaction.atomic()


@asynccontextmanager
async def django_connection(url: str) -> AsyncIterator[Caller]:
    _prepare(url)
    caller = DjangoCaller(connections["default"])
    caller.begin()
    yield caller
    caller.end()
    connections["default"].close()


@asynccontextmanager
async def django_in_autocommit(url: str) -> AsyncIterator[Caller]:
    _prepare(url)
    yield DjangoCaller(connections["default"])
    connections["default"].close()


def _prepare(url: str) -> None:
    skip_where_django_refuses(url)
    # The tests of all kinds are async functions; Django would refuse to block their loop.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    if settings.configured:
        return
    given = conninfo_to_dict(url)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": given["dbname"],
                "USER": given.get("user", ""),
                "PASSWORD": given.get("password", ""),
                "HOST": given.get("host", ""),
                "PORT": str(given.get("port", "")),
            }
        },
        USE_TZ=True,
    )
    django.setup()
