"""Contract, section 7: the server fails in the middle of everything that a worker does, and comes back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import pytest

import akadze
from akadze import AkadzeError, dev
from tests.database import create_database, drop_database
from tests.families import few
from tests.faults.breaking import FAULTS, SETTINGS, Gate, SteadyTable
from tests.faults.points import POINTS, Scene
from tests.servers import skip_without_programs
from tests.waiting import until
from tests.worker.serving import workers

_NAME = "akadze_faults_test"


@pytest.fixture(scope="module")
def server() -> Iterator[dev.Server]:
    skip_without_programs()
    with dev.start(tcp=True, settings=SETTINGS) as server:
        yield server


@dataclass
class Stage:
    server: dev.Server
    url: str
    table: SteadyTable
    scene: Scene
    gate: Gate


@pytest.fixture
async def stage(server: dev.Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr("akadze._worker.cleanup._PERIOD", 0.2)
    url = create_database(server.url(), _NAME)
    await akadze.migrate(url)
    table = await SteadyTable.open(url)
    scene, gate = Scene(url, table), Gate(url, table)
    yield Stage(server, url, table, scene, gate)
    await gate.end()
    await table.close()
    await scene.app.aclose()
    drop_database(server.url(), _NAME)


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records if record.name == "akadze.worker")


@pytest.mark.parametrize(
    ("fault", "point"),
    # Each fault and each point at least once.
    few(product(FAULTS, POINTS), kept=[*zip(cycle(FAULTS), POINTS, strict=False), ("killed", "finish")]),
)
async def test_a_worker_goes_on_by_itself_and_nothing_is_lost_or_spent(
    stage: Stage, fault: str, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="akadze")
    scene, table = stage.scene, stage.table
    doing, failing = POINTS[point](), FAULTS[fault](stage.server, table, stage.url)
    await doing.prepare(scene)
    if doing.trigger:
        await stage.gate.close(doing.trigger)
    async with workers(scene.app, table) as serve:
        served = await serve(slots=5, heartbeat_ttl=60)
        await doing.reached(scene)
        if doing.trigger:
            await stage.gate.reached()

        await failing.strike()
        await failing.noticed(lambda: said(caplog, "out of reach"))
        await stage.gate.open()
        scene.release.set()
        await failing.mend()

        await doing.settled(scene)
        await scene.succeeded(await scene.add(1, max_attempts=1))
        await until(lambda: said(caplog, "the database is back"))
        assert served.up
        await served.stop()
    assert await table.value("select count(*) = 0 from akadze.jobs where state in ('queued', 'running')")
    assert await table.value("select count(*) = 0 from akadze.workers where hostname <> 'elsewhere'")


@pytest.mark.parametrize("point", few(["claim", "run", "finish"], kept=["run"]))
async def test_a_worker_whose_lease_ends_while_the_server_is_away_stops_and_another_takes_its_jobs(
    stage: Stage, point: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akadze._worker.serving._TO_WRITE", 0.3)
    scene, table = stage.scene, stage.table
    doing, failing = POINTS[point](), FAULTS["killed"](stage.server, table, stage.url)
    await doing.prepare(scene)
    await table.rows("update akadze.jobs set max_attempts = 2")
    if doing.trigger:
        await stage.gate.close(doing.trigger)
    async with workers(scene.app, table) as serve:
        first = await serve(slots=5, heartbeat_interval=0.1, heartbeat_ttl=1)
        await doing.reached(scene)
        if doing.trigger:
            await stage.gate.reached()
        await failing.strike()
        error = await first.failed()
        assert isinstance(error, AkadzeError)
        assert "no heartbeat of this worker succeeded within 1 s" in str(error)
        scene.release.set()
        await failing.mend()

        await serve(slots=5, heartbeat_ttl=60)
        await table.ended(*scene.jobs)
        rows: list[dict[str, Any]] = await table.jobs(*scene.jobs)
        # What the first worker had claimed costs one attempt; a claim that was never committed costs none.
        spent = 0 if point == "claim" else 1
        assert {(row["state"], row["attempt"], len(row["errors"])) for row in rows} == {("succeeded", spent, spent)}
        assert {name for row in rows for name in row["error_names"]} == ({"WorkerLost"} if spent else set())
        assert set(scene.started.values()) == {1 + spent}
