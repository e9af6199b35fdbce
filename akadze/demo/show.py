"""The frame of the demo: a database before it, checks and tables after it."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.schema import CreateSchema

from akadze import dev, migrate
from akadze._connections import sync_caller
from akadze._statement import statement
from akadze._urls import libpq_url
from akadze.demo import shop, story
from akadze.demo.checks import Verdict, verdicts
from akadze.demo.crew import APP
from akadze.demo.screen import Screen
from akadze.demo.stage import TASKS, Stage
from akadze.errors import AkadzeError
from akadze.metrics import render_metrics
from akadze.sync import clear_limit

_STATES = {"succeeded": "green", "failed": "red", "cancelled": "blue", "running": "yellow", "queued": "bright_black"}


def show(screen: Screen, *, keep: bool) -> int:
    """Give the demo on the database that is at hand, and return the exit code."""
    given = os.environ.get("AKADZE_DATABASE_URL")
    return _on_given(screen, given, keep=keep) if given else _on_own(screen, keep=keep)


def _on_own(screen: Screen, *, keep: bool) -> int:
    begun = time.monotonic()
    screen.text("A PostgreSQL is started for it ...")
    server = dev.start(keep=keep)
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("create database shop"))
            version = connection.info.parameter_status("server_version") or ""
        seconds = time.monotonic() - begun
        screen.text(f"PostgreSQL {version.split()[0]} runs in {server.directory} after {seconds:.1f} s.")
        url = server.url("shop")
        code = asyncio.run(_play(screen, url, first=1))
    except BaseException:
        server.stop()
        raise
    if keep:
        _tell_how_to_go_on(screen, url)
        directory = shlex.quote(str(server.directory))
        screen.say("and to stop it and remove its data:")
        screen.command(f"kill -INT {server.pid}; sleep 1; rm -r {directory}")
    else:
        server.stop()
    return code


def _on_given(screen: Screen, url: str, *, keep: bool) -> int:
    with psycopg.connect(libpq_url(url), autocommit=True, prepare_threshold=None) as connection:
        first = _check_database(connection)
        name = connection.info.dbname
    screen.text(f"It uses the database {name}.")
    try:
        code = asyncio.run(_play(screen, url, first=first))
    except BaseException:
        with suppress(psycopg.Error):  # what went wrong before is what counts
            _clear(url, first)
        raise
    if keep:
        _tell_how_to_go_on(screen, None)
        screen.say("and before the next demo: drop schema shop cascade")
    else:
        _clear(url, first)
        screen.text("The demo has removed its rows and the schema shop; the schema akadze stays.")
    return code


def _check_database(connection: psycopg.Connection[Any]) -> int:
    """Refuse a database with work of its own. Return the first job id that can be the demo's."""
    caller = sync_caller(connection)
    (found,) = caller.rows(statement("demo", "find_others"))
    others = {"jobs": 0, "taken": 0, "first": 1}
    if found["jobs"]:
        (others,) = caller.rows(statement("demo", "count_others"), tasks=TASKS)
    refused = refusal(found["database"], has_shop=found["shop"], jobs=others["jobs"], taken=others["taken"])
    if refused is not None:
        raise AkadzeError(refused)
    return int(others["first"])


def refusal(database: str, *, has_shop: bool, jobs: int, taken: int) -> str | None:
    """Say why the demo does not use a database: it has these many jobs, some of which the demo's workers would take."""
    if has_shop:
        return (
            f"the database {database} has a schema named shop, which the demo would make: name no database to have a "
            "server started for the demo (unset AKADZE_DATABASE_URL), or drop the schema if it is of an earlier demo"
        )
    if taken or (jobs and database != "akadze" and not database.endswith("_test")):
        return (
            f"the database {database} has jobs in it: name no database to have a server started for the demo (unset "
            "AKADZE_DATABASE_URL), or one without jobs, or one that is called akadze or ends in _test"
        )
    return None


def _clear(url: str, first: int) -> None:
    with psycopg.connect(libpq_url(url), prepare_threshold=None) as connection:
        caller = sync_caller(connection)
        clear_limit(connection, shop.CARRIER)
        caller.rows(statement("demo", "delete_jobs"), tasks=TASKS, first=first)
        caller.rows(statement("demo", "delete_fires"), tasks=TASKS)
        caller.rows(statement("demo", "delete_shop"))


async def _play(screen: Screen, url: str, *, first: int) -> int:
    await migrate(url)
    stage = Stage(url, screen, first)
    begun = time.monotonic()
    async with stage.open():
        async with stage.engine.begin() as connection:
            await connection.execute(CreateSchema("shop"))
            await connection.run_sync(shop.Base.metadata.create_all)
        with screen:
            await story.tell(stage)
        await _print_jobs(stage)
        screen.title("What Prometheus would scrape (akadze metrics)")
        screen.text(await render_metrics(stage.engine))
        found = await verdicts(stage)
        _print_verdicts(screen, found)
    kept = sum(verdict.kept for verdict in found)
    screen.title(f"{kept} of {len(found)} promises kept, in {time.monotonic() - begun:.1f} s.")
    return 0 if kept == len(found) else 1


async def _print_jobs(stage: Stage) -> None:
    stage.screen.title("The table akadze.jobs, by task")
    names = ("succeeded", "failed", "cancelled", "planned")
    stage.screen.table(
        ("task", "jobs", *names),
        [
            [
                (row["task"], ""),
                (str(row["jobs"]), ""),
                *((str(row[name] or ""), _STATES.get(name, "")) for name in names),
            ]
            for row in (await stage.view()).tasks
        ],
    )
    stage.screen.title("Some of its rows")
    stage.screen.table(
        ("id", "task", "state", "runs", "attempts", "last error", "result"),
        [
            [
                (str(row["id"]), ""),
                (row["task"], ""),
                (row["state"], _STATES[row["state"]]),
                (str(row["run_count"]), ""),
                (f"{row['attempt']} of {row['max_attempts']}", ""),
                (row["error"] or "", "red"),
                (row["result"] or "", ""),
            ]
            for row in await stage.rows("list_telling_jobs")
        ],
    )


def _print_verdicts(screen: Screen, found: list[Verdict]) -> None:
    screen.title("What was promised, and what the database says")
    for verdict in found:
        screen.verdict(verdict.kept, verdict.promise, verdict.expected, verdict.found)


def _tell_how_to_go_on(screen: Screen, url: str | None) -> None:
    run = "uv run " if "UV_RUN_RECURSION_DEPTH" in os.environ else ""
    screen.title("The database stays, to look around in:")
    if url is not None:
        screen.command(f"export AKADZE_DATABASE_URL={shlex.quote(url)}")
    else:  # not printed, since it may hold a password, and perhaps known to --database-url alone
        screen.say("with AKADZE_DATABASE_URL set to its URL:")
    for command in ("jobs list --state failed", "workers list", "metrics", f"worker {APP}"):
        screen.command(f"{run}akadze {command}")
