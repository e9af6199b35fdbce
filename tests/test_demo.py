"""Contract, section 14: the demo, run as a person runs it, and its checks, which must be able to fail."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from akadze import dev
from akadze.demo import story
from akadze.demo.checks import verdicts
from akadze.demo.screen import Screen
from akadze.demo.show import refusal, show
from akadze.demo.stage import Notes, Stage
from tests.database import with_database
from tests.families import FULL, few
from tests.processes import COMMAND, Process
from tests.waiting import wait_until

needs_server = pytest.mark.skipif(dev.find_binaries() is None, reason="no PostgreSQL to start a server of its own")

PATIENCE = 180.0


def run_demo(directory: Path, *options: str, environment: dict[str, str] | None = None) -> Process:
    return Process(["demo", *options], directory=directory, name="demo", environment=environment or {})


def directory_of(output: str) -> Path:
    found = re.search(r"^PostgreSQL \S+ runs in (\S+) ", output, re.MULTILINE)
    assert found, output
    return Path(found[1])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@needs_server
def test_the_demo_keeps_its_promises_and_leaves_no_server(tmp_path: Path) -> None:
    demo = run_demo(tmp_path)
    try:
        assert demo.wait(PATIENCE) == 0
        assert demo.stderr == ""
        assert demo.stdout.count("\nok ") == 12
        assert "12 of 12 promises kept" in demo.stdout
        assert "BROKEN" not in demo.stdout
        assert 'akadze_jobs{queue="exports",state="succeeded"} 153\n' in demo.stdout
        assert "\x1b" not in demo.stdout  # a pipe gets plain lines
        assert not directory_of(demo.stdout).exists()
    finally:
        demo.end()


class Kept:
    """A demo that was told to keep its server, and what it printed."""

    def __init__(self, directory: Path) -> None:
        self.demo = run_demo(directory, "--keep")
        self.code = self.demo.wait(PATIENCE)
        self.output = self.demo.stdout
        lines = [line.strip() for line in self.output.partition("The database stays")[2].splitlines()]
        (export,) = (line for line in lines if line.startswith("export "))
        (self.stop,) = (line for line in lines if line.startswith("kill -INT "))
        # Under uv, as in the README's test command, the demo names its commands with `uv run` in front.
        commands = [line.removeprefix("uv run ") for line in lines]
        self.commands = [command for command in commands if command.startswith("akadze ")]
        self.url = export.removeprefix("export AKADZE_DATABASE_URL=").strip("'")
        self.directory = directory_of(self.output)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    kept = Kept(tmp_path_factory.mktemp("kept"))
    try:
        yield kept
    finally:
        subprocess.run(["sh", "-c", kept.stop], check=True)
        assert not kept.directory.exists(), "the command that the demo prints to stop the server leaves its folder"
        kept.demo.end()


@needs_server
@FULL
def test_a_kept_demo_can_be_looked_into_with_the_commands_that_it_names(kept: Kept, tmp_path: Path) -> None:
    assert kept.code == 0
    assert [command for command in kept.commands if command.startswith("akadze worker ")] == [
        "akadze worker akadze.demo.shop:app"
    ]
    for command in kept.commands:
        if not command.startswith("akadze worker "):
            done = subprocess.run(
                [COMMAND, *command.split()[1:]],
                env={**os.environ, "AKADZE_DATABASE_URL": kept.url},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout, command


@FULL
@needs_server
def test_the_tables_of_a_kept_demo_agree_with_what_it_said(kept: Kept) -> None:
    with psycopg.connect(kept.url) as connection:
        ends = connection.execute(
            "select task, state, count(*) from akadze.jobs group by 1, 2 order by 1, 2"
        ).fetchall()
        orders = connection.execute("select state, count(*) from shop.orders group by 1").fetchall()
    assert orders == [("paid", 8)]
    assert [end for end in ends if end[0] != "shop.count_orders"] == [
        ("shop.ask_for_review", "cancelled", 1),
        ("shop.ask_for_review", "queued", 7),
        ("shop.charge_order", "succeeded", 8),
        ("shop.close_books", "succeeded", 1),
        ("shop.export_page", "succeeded", 153),
        ("shop.print_invoice", "succeeded", 8),
        ("shop.send_mail", "failed", 1),
        ("shop.send_mail", "succeeded", 7),
        ("shop.send_parcel", "succeeded", 8),
    ]


async def broken_promises(url: str) -> list[str]:
    stage = Stage(url, Screen(), first=1)
    stage.notes = Notes(list(range(1, 9)), rolled_back=9, called_off=3, killed=1, taken_over_by=2, exit_codes={2: 0})
    async with stage.open():
        return [verdict.promise for verdict in await verdicts(stage) if not verdict.kept]


TAMPERING = {
    "What is rolled back": "insert into shop.orders (id, customer, state) values (9, 'x', 'paid')",
    "A unique key": "insert into akadze.jobs (task, state) values ('shop.charge_order', 'succeeded')",
    "A task's writes": "update shop.orders set state = 'placed' where id = 1",
    "The same holds for plain": "delete from shop.invoices where order_id = 1",
    "A failed run": "update akadze.jobs set run_count = 1 where task = 'shop.send_mail'",
    "A limit holds": "update akadze.jobs set started_at = (select min(started_at) from akadze.jobs"
    " where limit_key = 'shop:carrier') where limit_key = 'shop:carrier'",
    "A small tenant": "update akadze.jobs set started_at = now() where limit_key = 'tenant:small'",
    "A schedule fires once": "update akadze.jobs set run_at = now() where task = 'shop.count_orders'",
    "A cancelled job": "update akadze.jobs set run_count = 1 where state = 'cancelled'",
    "The job of a killed": "update akadze.jobs set attempt = 0, errors = '[]' where task = 'shop.close_books'",
    "SIGTERM": "insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)"
    " values (gen_random_uuid(), '', 2, '{}', '3s')",
    "Nothing is left": "insert into akadze.jobs (task) values ('shop.send_mail')",
}


@needs_server
async def test_the_checks_find_what_a_demo_left_in_order(kept: Kept) -> None:
    assert await broken_promises(kept.url) == []


@needs_server
@pytest.mark.parametrize(("promise", "statement"), TAMPERING.items())
async def test_each_check_can_fail(kept: Kept, promise: str, statement: str) -> None:
    with psycopg.connect(with_database(kept.url, "postgres"), autocommit=True) as connection:
        connection.execute("drop database if exists tampered with (force)")
        connection.execute("create database tampered template shop")
    url = with_database(kept.url, "tampered")
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL(statement))  # type: ignore[arg-type]
    broken = await broken_promises(url)
    assert any(found.startswith(promise) for found in broken), broken


@pytest.mark.parametrize("given", few(["variable", "option"], kept=["variable"]))
def test_an_interrupted_demo_stops_its_workers_and_clears_a_database_that_was_given(
    tmp_path: Path, database_url: str, given: str
) -> None:
    options = ["--database-url", database_url] if given == "option" else []
    demo = run_demo(tmp_path, *options, environment={} if options else {"AKADZE_DATABASE_URL": database_url})
    try:
        with psycopg.connect(database_url, autocommit=True) as connection:

            def working() -> bool:
                return connection.execute("select 1 from akadze.jobs where state = 'running'").fetchone() is not None

            wait_until(working, timeout=PATIENCE)
            pids = [pid for (pid,) in connection.execute("select pid from akadze.workers")]
            demo.interrupt()
            assert demo.wait(PATIENCE) == 130
            assert demo.stderr == ""
            assert demo.stdout.endswith("Stopped.\n")
            assert not any(map(is_alive, pids))
            left = (
                "select to_regnamespace('shop'), (select count(*) from akadze.jobs),"
                " (select count(*) from akadze.limits), (select count(*) from akadze.periodic_runs)"
            )
            assert connection.execute(left).fetchone() == (None, 0, 0, 0)
    finally:
        demo.end()


@pytest.mark.parametrize(
    ("database", "has_shop", "jobs", "taken", "refused"),
    [
        ("shop", False, 0, 0, None),
        ("akadze", False, 5, 0, None),
        ("app_test", False, 5, 0, None),
        ("app", False, 5, 0, "has jobs in it"),
        ("app_test", False, 5, 1, "has jobs in it"),
        ("app_test", True, 0, 0, "has a schema named shop"),
    ],
)
def test_a_database_with_work_of_its_own_is_refused(
    database: str, has_shop: bool, jobs: int, taken: int, refused: str | None
) -> None:
    said = refusal(database, has_shop=has_shop, jobs=jobs, taken=taken)
    assert (said is None) if refused is None else (said is not None and refused in said)


def test_the_commands_for_a_kept_database_that_was_given_say_how_they_find_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(*_: object, **__: object) -> int:
        return 0

    monkeypatch.setenv("AKADZE_DATABASE_URL", with_database(database_url, "akadze_kept_test"))
    monkeypatch.setattr("akadze.demo.show._play", play)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create database akadze_kept_test")
        try:
            assert show(Screen(), keep=True) == 0
        finally:
            connection.execute("drop database akadze_kept_test with (force)")
    printed = capsys.readouterr().out
    told = printed.index("with AKADZE_DATABASE_URL set to its URL:")
    assert told < printed.index("akadze jobs list")


def test_a_demo_that_breaks_a_promise_ends_with_code_1(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def tell(stage: Stage) -> None:
        async with stage.engine.begin() as connection:
            await connection.execute(text("insert into akadze.jobs (task, state) values ('shop.send_mail', 'failed')"))

    monkeypatch.setenv("AKADZE_DATABASE_URL", database_url)
    monkeypatch.setattr(story, "tell", tell)
    assert show(Screen(), keep=False) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_the_demo_names_a_customer_for_each_way_a_mail_can_go() -> None:
    from akadze.demo import outside

    assert set(outside.BUSY) < set(story.CUSTOMERS)
    assert outside.NOBODY in story.CUSTOMERS
