"""Contract, section 5: Django's database connections in a worker neither pile up nor stay dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from akadze import Akadze, dev
from tests.database import create_database
from tests.families import few
from tests.frameworks.django.conftest import Manage
from tests.servers import skip_without_programs
from tests.waiting import wait_until

SLOTS = 4


@pytest.fixture
def own_server() -> Iterator[dev.Server]:
    """A server that a test may restart."""
    skip_without_programs()
    with dev.start() as server:
        yield server


class Shop:
    """The database of the project, as a stranger sees it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._app = Akadze(database_url=url)
        self._tasks = [self._app.register(_never, name=name, max_attempts=2) for name in ("count", "count async")]

    def rows(self, statement: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(statement).fetchall()  # type: ignore[call-overload]  # of the tests alone

    def enqueue(self, number: int, *, seconds: float = 0) -> None:
        with psycopg.connect(self._url) as connection:
            for task in self._tasks:
                task.using(session=connection).enqueue_many([{"seconds": seconds}] * number)

    def states(self) -> dict[str, int]:
        return dict(self.rows("select state, count(*) from akadze.jobs group by state"))

    def djangos_connections(self) -> int:
        """Those whose last statement was one of the ORM."""
        [(count,)] = self.rows(
            "select count(*) from pg_stat_activity"
            """ where query like '%FROM "shop_note"%' and pid <> pg_backend_pid()"""
        )
        return int(count)


#: Connections that Django keeps from one use to the next.
LASTING = {"SHOP_CONN_MAX_AGE": "60", "SHOP_CONN_HEALTH_CHECKS": "1"}


def _never(seconds: float = 0) -> None:
    raise AssertionError("run by the test's own app")


@pytest.mark.parametrize("environment", few([{}, LASTING], kept=[LASTING]), ids=str)
def test_no_more_connections_than_slots_stay_and_all_jobs_succeed_after_a_restart_of_the_database(
    own_server: dev.Server, tmp_path: Path, environment: dict[str, str]
) -> None:
    shop = Shop(create_database(own_server.url(), "shop"))
    manage = Manage(own_server.url(), "shop")
    try:
        manage("migrate", "--verbosity", "0")
        worker = manage.start(
            "akadze_worker", "--slots", str(SLOTS), "--poll-interval", "50ms", log=tmp_path / "log", **environment
        )
        shop.enqueue(100)
        wait_until(lambda: shop.states() == {"succeeded": 200}, timeout=120)
        if environment:
            # An async function's go with its run; those of threads stay for the next function.
            wait_until(lambda: shop.djangos_connections() <= SLOTS)
            assert shop.djangos_connections() > 0
        else:
            wait_until(lambda: shop.djangos_connections() == 0)
        shop.enqueue(100, seconds=0.05)
        wait_until(lambda: shop.states().get("succeeded", 0) > 220)
        own_server.restart()  # in the middle of what is left
        assert shop.states()["succeeded"] < 400
        wait_until(lambda: shop.states() == {"succeeded": 400}, timeout=120)
        assert shop.rows("select count(distinct result ->> 2) from akadze.jobs where task = 'count'") <= [(SLOTS,)]
        assert worker.process.poll() is None
    finally:
        manage.end()
