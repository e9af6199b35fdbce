"""Contract, sections 14 and 15: the command line and the metrics."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

import akadze.sync
from akadze import AkadzeError
from akadze._statement import statement
from akadze.sync.metrics import render_metrics
from tests.families import FULL
from tests.field.world import World
from tests.processes import COMMAND, Process

QUEUES = ['a"b', "c\\d", "e\nf", "g\\n", "žluť", '{x="y"} 1']
STATES = ("succeeded", "failed", "cancelled")
FAMILIES = ["akadze_jobs", "akadze_queue_lag_seconds", "akadze_worker_busy", "akadze_queue_paused"]


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def ended(world: World, *lines: str, environment: dict[str, str] | None = None) -> list[Process]:
    """Run commands, all at once, to their ends."""
    processes = [world.command(*line.split(), environment=environment) for line in lines]
    for process in processes:
        process.wait()
    return processes


def labels_and_values(text: str) -> dict[str, list[tuple[str, float]]]:
    """Return the samples of each metric by their label `queue`."""
    lines = text.splitlines()
    for family in FAMILIES:
        for word in ("HELP", "TYPE"):
            assert sum(line.startswith(f"# {word} {family} ") for line in lines) == 1
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    found = {
        family.name: [(sample.labels.get("queue", ""), sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }
    assert list(found) == FAMILIES
    return found


@FULL
def test_b133_odd_queue_names_do_not_spoil_the_scrape(world: World) -> None:
    for queue in QUEUES:
        world.enqueue("task", queue=queue)
    with world.connect() as connection, connection.transaction():
        akadze.sync.pause_queue(connection, "e\nf")
        text = render_metrics(connection)

    printed, jobs, queues = ended(world, "metrics", "jobs list", "queues list")
    for found in (labels_and_values(text), labels_and_values(printed.stdout)):
        assert sorted(found["akadze_jobs"]) == sorted((queue, 1) for queue in QUEUES)
        assert sorted(found["akadze_queue_paused"]) == sorted((queue, int(queue == "e\nf")) for queue in QUEUES)
    assert [len(process.stdout.splitlines()) for process in (jobs, queues)] == [len(QUEUES)] * 2


def rows_read(connection: psycopg.Connection) -> int:
    """Return how many rows of the table of jobs this session has read lately."""
    answer = connection.execute(
        "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
        " where relid = 'akadze.jobs'::regclass"
    )
    [(rows,)] = answer.fetchall()
    return int(rows)


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


@pytest.mark.heavy
@pytest.mark.parametrize("width", [2, 500])
def test_b134_counts_of_a_big_table_are_right_and_read_one_index(
    connection: psycopg.Connection, full: bool, width: int
) -> None:
    finished = 1_000_000 if full else 10_000
    connection.execute(
        "insert into akadze.jobs (task, queue, state, run_count, args, started_at, finished_at, result)"
        " select 'task', 'q' || mod(i, 2), (%s::text[])[1 + mod(i, 3)], 1,"
        " jsonb_build_object('a', repeat('x', %s)), now(), now(), to_jsonb(repeat('y', %s))"
        " from generate_series(1, %s) i",
        (list(STATES), width, width, finished),
    )
    connection.execute("insert into akadze.jobs (task, queue) select 'task', 'q0' from generate_series(1, 200)")
    connection.execute("vacuum analyze akadze.jobs")

    snapshot = akadze.sync.queue_snapshot(connection)
    found = {(count.queue, count.state): count.jobs for count in snapshot.counts}
    assert found.pop(("q0", "queued")) == 200
    assert set(found) == {(queue, state) for queue in ("q0", "q1") for state in STATES}
    assert sum(found.values()) == finished
    assert max(found.values()) - min(found.values()) <= 1
    if width > 100:  # else the table is as small as the index
        plan = "\n".join(line for (line,) in connection.execute(f"explain {statement('queues', 'count_jobs').sql}"))
        assert "Index Only Scan using jobs_pkey" in plan

    # The lag is measured on the jobs that are queued, however many have finished.
    with connection.transaction():
        before = rows_read(connection)
        connection.execute(statement("queues", "measure_lag").sql)
        assert 200 <= rows_read(connection) - before < 1000
    if full:
        # On a machine that is busy or slow the bound grows with what a plain sum takes, about 0.3 s else.
        scrapes, sums = [], []
        for _ in range(5):
            scrapes.append(seconds(lambda: render_metrics(connection)))
            sums.append(seconds(lambda: connection.execute("select sum(i) from generate_series(1, 3000000) i")))
        assert min(scrapes) < max(0.3, min(sums))


@FULL
@pytest.mark.heavy
def test_b135_a_reader_that_goes_away_ends_a_command_in_silence(world: World, full: bool) -> None:
    world.rows(
        "insert into akadze.jobs (task, meta) select 'task', jsonb_build_object('text', repeat('x', 200))"
        " from generate_series(1, %s)",
        50_000 if full else 1000,
    )
    for line in ("jobs list --limit 1000 | head -1", "jobs list | head -1", "metrics | true"):
        done = subprocess.run(
            ["bash", "-c", f"{shlex.quote(str(COMMAND))} {line}; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,  # it hangs
            env={**os.environ, "AKADZE_DATABASE_URL": world.url},
        )
        assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")


@FULL
def test_b135_a_worker_whose_log_nobody_reads_goes_on(world: World, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "import os\nfrom akadze import Akadze\napp = Akadze(database_url=os.environ['AKADZE_DATABASE_URL'])\n"
        "@app.task('task', max_attempts=1)\ndef task(fail: bool):\n    print('runs')\n    assert not fail\n"
    )
    worker = subprocess.Popen(
        ["bash", "-c", f"{shlex.quote(str(COMMAND))} worker module:app --poll-interval 0.2 2>&1 | head -1"],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "AKADZE_DATABASE_URL": world.url},
    )
    assert worker.stdout is not None
    # The bodies print and the worker warns of errors, so it meets the closed pipe.
    with worker.stdout:
        assert worker.stdout.readline()
        pid = world.value("select pid from akadze.workers")
        try:
            for fail in (True, True, False):
                [job_id] = world.enqueue("task", args={"fail": fail})
                assert world.in_state(job_id, "succeeded", "failed")["state"] == ("failed" if fail else "succeeded")
        finally:
            os.kill(pid, 15)
            assert worker.wait(60) == 0


def test_b137_filters_take_each_character_for_itself(world: World) -> None:
    metas: list[dict[str, Any]] = [{"t": "x_1"}, {"t": "xy1"}, {"t": 1}, {"t": "1"}, {"t": None}, {"n": {"k": 1}}]
    in_queue = {queue: world.enqueue("task", queue=queue) for queue in ("a_b", "axb", "a%")}
    with_meta = [world.enqueue("task", queue="m", meta=meta) for meta in metas]
    everything = [job for jobs in [*in_queue.values(), *with_meta] for job in jobs]

    with world.connect() as connection:

        def ids(**filters: Any) -> list[int]:
            return [job.id for job in akadze.sync.list_jobs(connection, **filters)]

        for queue, jobs in in_queue.items():
            assert ids(queue=queue) == jobs
        for meta, jobs in zip(metas, with_meta, strict=True):
            assert ids(meta=meta) == jobs
        assert ids(meta={}) == everything
        assert ids(meta={"n": {}}) == []
        assert ids(queue="a", meta={"t": 1}) == []
        for limit in (0, -1, 1001, 10**30):
            with pytest.raises(AkadzeError, match="limit"):
                ids(limit=limit)


FULL_APP = """
import os
from datetime import timedelta
from akadze import Akadze

app = Akadze(database_url=os.environ.get("AKADZE_DATABASE_URL") or "postgresql://127.0.0.1/nosuch")

@app.periodic("tick", every=timedelta(seconds=1))
async def tick() -> None: ...

@app.task("task", queue="q")
def task() -> None: ...

for hooks in (app.hooks.on_enqueue, app.hooks.before_run, app.hooks.after_run, app.hooks.on_transition):
    hooks.append(lambda *given: None)
"""
SHORT = ["jobs list", "workers list", "limits list", "metrics", "queues pause q", "migrate", "--help"]


def one_line(process: Process) -> str:
    assert process.stdout == ""
    assert process.stderr.startswith("error: ")
    assert process.stderr.count("\n") == 1
    return process.stderr


@FULL
def test_b139_short_commands_return(world: World) -> None:
    processes = ended(world, *SHORT)
    assert [(process.returncode, process.stderr) for process in processes] == [(0, "")] * len(SHORT)


@FULL
def test_b139_without_a_database_they_fail_with_one_line(world: World) -> None:
    [unset] = ended(world, "jobs list", environment={"AKADZE_DATABASE_URL": ""})
    assert unset.returncode == 2
    assert "AKADZE_DATABASE_URL" in one_line(unset)

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        nowhere = {"AKADZE_DATABASE_URL": f"postgresql://ada:secret@127.0.0.1:{port}/app"}
        for process in ended(world, "migrate", "queues pause q", environment=nowhere):
            assert process.returncode == 1
            assert str(port) in one_line(process)
            assert "secret" not in process.stderr


@FULL
def test_b139_a_wrong_app_is_named_and_an_error_within_it_shows_its_traceback(world: World) -> None:
    (world.directory / "full.py").write_text(FULL_APP)
    (world.directory / "broken.py").write_text("import nosuch_dependency\n")
    module, name, broken = ended(world, "worker nosuch:app", "worker full:nosuch", "worker broken:app")
    assert (module.returncode, name.returncode) == (2, 2)
    assert "nosuch" in one_line(module)
    assert "nosuch" in one_line(name)
    assert broken.returncode == 1
    assert "Traceback" in broken.stderr
    assert 'broken.py", line 1' in broken.stderr
    assert "No module named 'nosuch_dependency'" in broken.stderr
