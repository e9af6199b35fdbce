"""Contract, section 14: no password is in an error, a log line or a command's output when no database is reached."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from typer.testing import CliRunner

import akadze
from akadze import Akadze, AkadzeError, Worker, dev, sync
from akadze.cli import commands
from akadze.metrics import render_metrics
from akadze.testing import drain
from tests.families import few
from tests.faults.leaking import SECRET
from tests.faults.seen import PASSWORD, Seen, seen
from tests.processes import Starter
from tests.servers import skip_without_programs

__all__ = ["seen"]


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[dev.Server]:
    """A server that asks for a password."""
    skip_without_programs()
    with dev.start(tcp=True) as server:
        yield server


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unreachable(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "refused":
        return f"postgresql://someone:{PASSWORD}@127.0.0.1:{closed_port()}/shop"
    if kind == "refused, as a parameter":
        return f"postgresql://127.0.0.1:{closed_port()}/shop?user=someone&password={PASSWORD}"
    server: dev.Server = request.getfixturevalue("tcp_server")
    return make_url(server.url()).set(password=PASSWORD).render_as_string(hide_password=False)


@pytest.mark.parametrize("kind", ["refused", "refused, as a parameter", "wrong password"])
async def test_a_database_that_cannot_be_reached(kind: str, seen: Seen, request: pytest.FixtureRequest) -> None:
    url = unreachable(kind, request)
    app = Akadze(database_url=url)
    task = app.register(lambda secret: None, name="task")

    async def insert() -> None:
        async with app.engine.begin() as connection:
            await task.using(session=connection).enqueue(secret=SECRET)

    def insert_blocking() -> None:
        with app.sync_engine.begin() as connection:
            task.using(session=connection).enqueue(secret=SECRET)

    options = {"heartbeat_interval": timedelta(seconds=0.1), "heartbeat_ttl": timedelta(seconds=0.5)}
    for call in (
        insert,
        lambda: akadze.migrate(url),
        lambda: akadze.applied_versions(url),
        lambda: akadze.list_jobs(app.engine),
        lambda: render_metrics(app.engine),
        lambda: drain(app),
        lambda: Worker(app, **options).serve(asyncio.Event()),  # type: ignore[arg-type]  # they are given by name
    ):
        with pytest.raises((psycopg.Error, OperationalError, AkadzeError)) as raised:
            await asyncio.wait_for(call(), 30)
        seen.add_error(raised.value)
    for blocking in (insert_blocking, lambda: sync.migrate(url), lambda: sync.list_workers(app.sync_engine)):
        with pytest.raises((psycopg.Error, OperationalError)) as raised:
            blocking()
        seen.add_error(raised.value)
    for shown in (app, app.engine, app.sync_engine, app.engine.url, app.engine.pool, task, Worker(app)):
        seen.add(f"{shown!r} {shown!s}")
    await app.aclose()


MALFORMED = [
    f"postgresql://someone:{PASSWORD}/half@localhost/shop",
    f"postgresql://someone:{PASSWORD}@localhost:port/shop",
    f"postgresql://someone:{PASSWORD}@localhost:99999/shop",
    f"postgresql://someone:{PASSWORD}@[::1/shop",
    f"postgresql://someone:{PASSWORD}@localhost/shop?no_such_option=1",
    f"postgresql://someone:{PASSWORD}@a,b:1,2,3/shop?port=1,2,3,4",
    f"mysql://someone:{PASSWORD}@localhost/shop",
    f"someone:{PASSWORD}@localhost/shop",
    f"host=localhost user=someone password={PASSWORD}",
    PASSWORD,
]


@pytest.mark.parametrize("number", range(len(MALFORMED)))
async def test_a_url_that_is_none(number: int, seen: Seen) -> None:
    url = MALFORMED[number]
    for call in (lambda: Akadze(database_url=url).sync_engine.connect(), lambda: sync.migrate(url)):
        try:
            call()
        except (AkadzeError, psycopg.Error, DBAPIError) as error:
            seen.add_error(error)
        else:
            raise AssertionError("it was taken")
    for way in ([], ["--database-url", url]):
        for arguments in (["jobs", "list"], ["migrate"], ["metrics"]):
            done = CliRunner().invoke(commands.app, [*arguments, *way], env={"AKADZE_DATABASE_URL": "" if way else url})
            assert done.exit_code in (1, 2), done.output
            assert "Traceback" not in done.output
            assert done.output.count("\n") == 1
            seen.add(done.output)


@pytest.mark.parametrize("kind", few(["refused", "refused, as a parameter", "wrong password"], kept=["wrong password"]))
def test_a_command_on_a_database_that_cannot_be_reached(
    kind: str, seen: Seen, request: pytest.FixtureRequest, start_worker: Starter
) -> None:
    url = unreachable(kind, request)
    for arguments in (["jobs", "list"], ["jobs", "show", "1"], ["workers", "list"], ["migrate"], ["metrics"]):
        done = CliRunner().invoke(commands.app, [*arguments, "--database-url", url])
        assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
        assert isinstance(done.exception, SystemExit)
        seen.add(done.output)
    process = start_worker(
        """
        import os
        from akadze import Akadze

        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
        app.register(lambda: None, name="task")
        """,
        *("--heartbeat-interval", "0.1", "--heartbeat-ttl", "0.5", "--log-level", "debug"),
        environment={"AKADZE_DATABASE_URL": url},
    )
    assert process.wait() == 1
    assert process.stderr
    seen.add(process.stdout + process.stderr)
