"""Contract, sections 7 and 10: connections that die without a word, as behind a firewall, while new ones work."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from akadze import Akadze
from akadze._worker import upkeep
from tests.worker.proxy import Proxy
from tests.worker.serving import Serve
from tests.worker.table import Table


class Forgetful(Proxy):
    """Passes on the bytes of new connections only, once told to forget."""

    def __init__(self, database_url: str) -> None:
        super().__init__(database_url)
        self._gates: list[asyncio.Event] = []

    def forget(self) -> None:
        for gate in self._gates:
            gate.clear()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        gate = asyncio.Event()
        gate.set()
        self._gates.append(gate)
        with suppress(OSError):
            while chunk := await source.read(65536):
                await gate.wait()
                target.write(chunk)
                await target.drain()
        target.transport.abort()

    async def end(self) -> None:
        for gate in self._gates:
            gate.set()
        await super().end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_PATIENCE", 1.0)


@pytest.mark.usefixtures("impatient")
async def test_schedules_and_rescue_go_on_when_all_connections_have_died_in_silence(
    database_url: str, table: Table, serve: Serve
) -> None:
    proxy = Forgetful(database_url)
    await proxy.start()
    app = Akadze(database_url=proxy.url)

    @app.periodic("task", every=timedelta(seconds=1))
    async def task() -> None:
        pass

    try:
        served = await serve(app, heartbeat_ttl=3)
        await table.until("select count(*) > 1 from akadze.periodic_runs")
        proxy.forget()
        fired = await table.value("select count(*) from akadze.periodic_runs")
        lost = await table.add_worker(ttl=1, silent_for=60)
        await table.rows("insert into akadze.jobs (task) values ('task')")
        await table.rows("update akadze.jobs set state = 'running', worker_id = %s where state = 'queued'", lost)
        # psycopg takes its time to give a connection up.
        await table.until("select count(*) > %s from akadze.periodic_runs", fired + 4)
        await table.until("select count(*) = 0 from akadze.jobs where worker_id = %s", lost)
        assert served.up
        await served.stop()
    finally:
        await proxy.end()
        await app.aclose()
