"""Contract, section 15: no argument or result is in a log line, a command's output or a repr, however a run ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import psycopg
import pytest
from typer.testing import CliRunner

import akadze
from akadze import Akadze, sync
from akadze.cli import commands
from akadze.contrib.fastapi import lifespan_worker
from akadze.testing import drain
from tests.faults import leaking
from tests.faults.leaking import SECRET
from tests.faults.seen import PASSWORD, Seen, seen
from tests.processes import Starter
from tests.waiting import wait_until
from tests.worker.serving import workers
from tests.worker.table import Table, enqueue, enqueue_many

__all__ = ["seen"]


async def test_runs_however_they_end(app: Akadze, table: Table, seen: Seen) -> None:
    leaking.register(app)
    jobs = {
        (task, how): await enqueue(
            app.tasks[task], {"how": how, "secret": SECRET}, unique_key=f"{task} {how} {SECRET}", meta={"m": SECRET}
        )
        for task in ("leak", "leak_in_thread")
        for how in leaking.WAYS
        if (task, how) != ("leak_in_thread", "time out")
    }
    # Arguments that do not fit any more, and a job whose worker is lost.
    [bad] = await table.rows(
        "insert into akadze.jobs (task, args, max_attempts) values ('leak', %s, 1) returning id",
        json.dumps({"how": [SECRET], "secret": SECRET, "unknown": SECRET}),
    )
    [lost] = await enqueue_many(app.tasks["leak"], [{"how": "return", "secret": SECRET}], expires_at=None)
    await table.start_elsewhere(await table.add_worker(ttl=1, silent_for=2), lost)
    async with workers(app, table) as serve:
        await serve(slots=len(jobs))
        ending = [job_id for (_, how), job_id in jobs.items() if leaking.WAYS[how] != "queued"]
        await table.ended(bad["id"], lost, *ending)
        states = await table.states()
    assert {key: states[job_id] for key, job_id in jobs.items()} == {key: leaking.WAYS[key[1]] for key in jobs}
    assert (states[bad["id"]], states[lost]) == ("failed", "succeeded")
    row = await table.job(bad["id"])
    assert SECRET not in json.dumps(row["errors"])
    # The secret was there all the time: it is in the results and in what the bodies said.
    assert SECRET in json.dumps((await table.job(jobs["leak", "return"]))["result"])
    assert SECRET in json.dumps((await table.job(jobs["leak", "raise"]))["errors"])
    assert "ended with ValueError" in seen.all()


async def test_a_drain_however_its_jobs_end(app: Akadze, table: Table, seen: Seen) -> None:
    leaking.register(app)
    ways = [how for how, state in leaking.WAYS.items() if state != "queued" and how != "time out"]
    for task in ("leak", "leak_in_thread"):
        await enqueue_many(
            app.tasks[task], [{"how": how, "secret": SECRET} for how in ways if how != "time out"], max_attempts=1
        )
    await drain(app)
    await table.until("select count(*) > 10 from akadze.jobs where state = 'failed'")
    assert "ended with ValueError" in seen.all()


async def test_a_password_in_an_error_of_a_body_is_not_stored(app: Akadze, table: Table, seen: Seen) -> None:
    @app.task("task", max_attempts=1)
    async def task(url: str) -> None:
        raise ConnectionError(f"cannot reach {url}") from ValueError(url)

    urls = [f"postgresql://u:{PASSWORD}@h/db", f"host=h password={PASSWORD} user=u"]
    ids = await enqueue_many(task, [{"url": url} for url in urls])
    await drain(app)
    for job_id in ids:
        row = await table.job(job_id)
        assert row["state"] == "failed"
        assert "cannot reach" in json.dumps(row["errors"])
        assert PASSWORD not in json.dumps(row["errors"])


async def test_results_that_the_database_refuses(app: Akadze, table: Table, seen: Seen) -> None:
    """As a value that cannot be stored, as a broken rule of the table, and with an error that quotes the row."""

    @app.task("task", max_attempts=1)
    async def task(secret: str) -> str:
        return secret

    await table.rows(
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'not %%', new.result using errcode = '22023'; end $$;"
        " create trigger refuse before update on akadze.jobs for each row when (new.state = 'succeeded')"
        " execute function public.refuse()"
    )
    first = await enqueue(task, {"secret": SECRET})
    async with workers(app, table) as serve:
        await serve()
        row = await table.ended(first)
    assert (row["state"], row["error_names"]) == ("failed", ["ResultNotJson"])
    assert SECRET not in json.dumps(row["errors"])

    await table.rows(
        "drop trigger refuse on akadze.jobs; drop function public.refuse();"
        " alter table akadze.jobs add constraint rule check (result is null) not valid"
    )
    failed = asyncio.Event()
    try:
        await enqueue(task, {"secret": SECRET})
        async with workers(app, table) as serve:
            with pytest.raises(psycopg.errors.CheckViolation):  # it is the server's own, and quotes the row
                await (await serve()).join()
        await enqueue(task, {"secret": SECRET})
        with suppress(LookupError):
            async with lifespan_worker(app, on_failure=lambda error: failed.set()):
                await asyncio.wait_for(failed.wait(), 20)
                raise LookupError
    finally:
        await table.rows("alter table akadze.jobs drop constraint rule")
    assert "violates check constraint" in seen.all()
    assert "failed while it was stopped: CheckViolation" in seen.all()


def test_a_worker_process_at_debug_level(database_url: str, seen: Seen, start_worker: Starter) -> None:
    app = Akadze(database_url=database_url)
    leaking.register(app)
    with app.sync_engine.begin() as connection:
        for task in ("leak", "leak_in_thread"):
            app.tasks[task].using(session=connection).enqueue_many(
                [{"how": how, "secret": SECRET} for how in leaking.WAYS if how != "time out"]
            )
    process = start_worker(
        """
        import os
        from akadze import Akadze
        from tests.faults import leaking

        app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])
        leaking.register(app)
        """,
        *("--slots", "10", "--log-level", "debug"),
        environment={"PYTHONPATH": str(leaking.__file__).removesuffix("/tests/faults/leaking.py")},
    )
    going = [how for how, state in leaking.WAYS.items() if state == "queued"]

    def ended() -> bool:
        assert process.returncode is None, process.stderr
        with psycopg.connect(database_url) as connection:
            [row] = connection.execute(
                "select count(*) from akadze.jobs where state in ('queued', 'running') and args ->> 'how' <> all (%s)",
                [going],
            )
            return bool(row == (0,))

    wait_until(ended)
    process.terminate()
    process.wait()
    assert "ended with ValueError" in process.stderr
    assert "DEBUG" in process.stderr or "INFO" in process.stderr
    seen.add(process.stdout + process.stderr)
    ids = [str(job.id) for job in sync.list_jobs(app.sync_engine, state="succeeded")]
    for arguments in (
        ["jobs", "show", ids[0]],
        ["jobs", "show", ids[0], "--json"],
        ["jobs", "cancel", ids[0]],
        ["jobs", "requeue", ids[0]],
        ["queues", "list"],
        ["workers", "list"],
        ["limits", "list"],
        ["metrics"],
    ):
        done = CliRunner().invoke(commands.app, arguments, env={"AKADZE_DATABASE_URL": database_url})
        seen.add(done.output)
    app.close()


async def test_what_hooks_and_bodies_are_given_shows_no_arguments(app: Akadze, table: Table, seen: Seen) -> None:
    shown: list[str] = []

    @app.task("task")
    async def task(secret: str) -> str:
        context = akadze.current()
        shown.extend([repr(context), str(context), repr(context.job), str(context.job), f"{context.job}"])
        return secret

    app.hooks.on_enqueue.append(lambda connection, job: shown.append(f"{job!r} {job!s}"))
    app.hooks.on_transition.append(lambda connection, job, old, new: shown.append(f"{job!r} {job!s}"))
    job_id = await enqueue(task, {"secret": SECRET}, unique_key=SECRET)
    async with workers(app, table) as serve:
        served = await serve()
        await table.ended(job_id)
        shown.append(f"{served.worker!r} {served.task!r}")
    assert len(shown) > 6
    seen.add("\n".join(shown))
