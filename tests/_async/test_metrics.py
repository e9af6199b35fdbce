"""Contract, section 15: the metrics text, and the list of workers."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from akadze import Akadze, WorkerSummary, list_workers, pause_queue
from akadze.metrics import render_metrics

from .conftest import Engine, Rows

ODD_QUEUES = ['a"b', "c\\d", "e\nf", "g\\n", "žluť", '{x="y"} 1', "%s :x", "#"]

INSERT_WORKER = (
    "insert into akadze.workers (id, hostname, pid, queues, started_at, heartbeat_at, heartbeat_ttl)"
    " values (cast(:id as uuid), :hostname, 7, cast(:queues as text[]), now() - interval '1 hour',"
    " now() - make_interval(secs => :age), '30 s')"
)


async def samples(source: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by name and labels, read by a parser that is not ours."""
    text = await render_metrics(source)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type == "gauge"
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), "a sample stands there twice"
            found[sample.name][labels] = sample.value
    lines = text.splitlines()
    for name in ("akadze_jobs", "akadze_queue_lag_seconds", "akadze_worker_busy", "akadze_queue_paused"):
        assert sum(line.startswith(f"# HELP {name} ") for line in lines) == 1
        assert sum(line.startswith(f"# TYPE {name} ") for line in lines) == 1
    assert text.endswith("\n")
    return found


async def test_an_empty_database_has_metrics_too(engine: Engine) -> None:
    found = await samples(engine)
    assert found["akadze_queue_lag_seconds"] == {(): 0.0}
    assert found["akadze_worker_busy"] == {(): 0.0}
    assert found.get("akadze_jobs", {}) == {}


async def test_numbers_and_labels_are_those_of_the_table(engine: Engine, app: Akadze, rows: Rows) -> None:
    async with engine.begin() as connection:
        for queue in ODD_QUEUES:
            task = app.register(lambda: None, name=queue, queue=queue)
            await task.using(session=connection).enqueue_many([{}] * 2)
        await pause_queue(connection, ODD_QUEUES[0])
        await pause_queue(connection, "empty")
    await rows(
        "update akadze.jobs set state = 'running' where id = (select max(id) from akadze.jobs where queue = :queue)",
        queue=ODD_QUEUES[1],
    )
    await rows("update akadze.jobs set run_at = run_at - interval '90 s' where queue = :queue", queue=ODD_QUEUES[2])
    found = await samples(engine)
    expected = {(queue, "queued"): 2.0 for queue in ODD_QUEUES}
    expected |= {(ODD_QUEUES[1], "queued"): 1.0, (ODD_QUEUES[1], "running"): 1.0}
    assert found["akadze_jobs"] == expected
    assert found["akadze_worker_busy"] == {(): 1.0}
    assert 90 <= found["akadze_queue_lag_seconds"][()] < 150
    paused = {(queue,): 0.0 for queue in ODD_QUEUES}
    assert found["akadze_queue_paused"] == paused | {(ODD_QUEUES[0],): 1.0, ("empty",): 1.0}


async def test_workers_are_listed_with_the_latest_beat_first_then_by_id(engine: Engine, rows: Rows) -> None:
    assert await list_workers(engine) == ()
    for number, age in ((3, 0), (1, 20), (2, 3600)):
        await rows(INSERT_WORKER, id=str(UUID(int=number)), hostname=f"host {number}", queues="{b,a}", age=age)
    await rows("update akadze.workers set heartbeat_at = (select max(heartbeat_at) from akadze.workers) where pid = 7")
    await rows("update akadze.workers set heartbeat_at = now() where hostname = 'host 2'")
    found = await list_workers(engine)
    assert [worker.id for worker in found] == [UUID(int=2), UUID(int=1), UUID(int=3)]
    [worker] = [worker for worker in found if worker.id == UUID(int=1)]
    assert worker == WorkerSummary(
        id=UUID(int=1),
        hostname="host 1",
        pid=7,
        queues=("b", "a"),
        started_at=worker.started_at,
        heartbeat_at=worker.heartbeat_at,
    )
    assert worker.started_at.utcoffset() == timedelta(0)
    assert worker.heartbeat_at - worker.started_at > timedelta(minutes=59)
    with pytest.raises(dataclasses.FrozenInstanceError):
        worker.pid = 8  # type: ignore[misc]  # refused on purpose
