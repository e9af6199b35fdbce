"""``akadze jobs``: list, show, requeue, cancel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from akadze._states import FINAL, QUEUED, RUNNING, STATES
from akadze.cli.database import checking, opened
from akadze.cli.options import AsJson, DatabaseUrl
from akadze.cli.output import Json, fail, show, show_one, shown_time

if TYPE_CHECKING:
    import psycopg

app = typer.Typer(
    help="List jobs, look at one, and requeue or cancel them.", no_args_is_help=True, rich_markup_mode=None
)

_MOST = 1000
#: What leaves a narrow terminal's table first.
_BELOW = ("meta", "queue", "priority", "task", "when", "attempt")

JobIds = Annotated[list[int], typer.Argument(metavar="ID", show_default=False, help="Ids of the jobs.")]


def _shown_errors(text: str) -> tuple[str, ...]:
    """Return each error of a job for people, as JSON what is written by hand: the table asks for an array alone."""
    try:
        return tuple(map(_shown_error, json.loads(text)))
    except (ValueError, RecursionError):  # a number of thousands of digits, or depths
        return (text,)


def _shown_error(error: Any) -> str:
    match error:
        case {"at": str(at), "error": str(name), "message": str(message)}:
            return f"{_shown_time(at)} {name}: {message}"
    return _as_json(error)


def _shown_time(at: str) -> str:
    try:
        return shown_time(datetime.fromisoformat(at))
    except (ValueError, OverflowError):  # of no time, or of one that is out of range in UTC
        return at


def _state(text: str) -> str:
    if text not in STATES:
        raise typer.BadParameter(f"{text!r} is no state: give one of {', '.join(STATES)}")
    return text


@app.command("list")
def list_(
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.")] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", parser=_state, help=f"Only jobs in this state: {', '.join(STATES)}."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only jobs of this task.")] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option(
            "--meta",
            metavar="KEY=VALUE",
            help="Only jobs whose meta has this pair. The value is JSON if it reads as JSON (7, true, null, "
            "'\"7\"', '{\"a\": 1}'), else text. Can be given several times; all pairs must be there.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=_MOST, help="At most this many jobs.")] = 50,
    newest: Annotated[bool, typer.Option("--newest", help="The job that was made last comes first.")] = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = "",
) -> None:
    """List jobs, the highest priority first, then by run_at and id. Arguments, results and errors are not shown."""
    from akadze._connections import sync_caller
    from akadze._options import check_meta, check_name, check_queue
    from akadze._sync.jobs import read_summaries
    from akadze.errors import AkadzeError

    pairs = _meta(meta or [])
    with checking():
        wanted = check_meta(pairs, error=AkadzeError)
        if queue is not None:
            check_queue(queue)
        if task is not None:
            check_name("a task's name", task)
    with opened(database_url, reading=True) as connection:
        jobs = read_summaries(
            sync_caller(connection), queue=queue, state=state, task=task, meta=wanted, limit=limit, newest=newest
        )
    rows = [
        {
            "id": job.id,
            "task": job.task,
            "queue": job.queue,
            "state": job.state,
            "priority": job.priority,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "run_at": job.run_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
            "meta": _as_json(dict(job.meta)),
        }
        for job in jobs
    ]
    full = len(rows) == limit
    show(
        rows,
        as_json=as_json,
        empty="No jobs.",
        table=[_narrow(row, priorities=any(row["priority"] for row in rows)) for row in rows],
        below=_BELOW,
        note=f"The {'newest' if newest else 'first'} {limit}; there may be more." if full else None,
    )


@app.command("show")
def show_(
    job_id: Annotated[int, typer.Argument(metavar="ID", show_default=False, help="Id of the job.")],
    args: Annotated[bool, typer.Option("--args", help="Show the arguments, too.")] = False,
    result: Annotated[bool, typer.Option("--result", help="Show the result, too.")] = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = "",
) -> None:
    """Show one job with its errors. Its arguments and result may hold personal data, and are shown when asked for."""
    from akadze import _rows
    from akadze._connections import sync_caller
    from akadze._options import check_job_id
    from akadze._statement import statement

    with checking():
        check_job_id(job_id)
    with opened(database_url, reading=True) as connection:
        row = _read(connection, [job_id])[0]
        instants = sync_caller(connection).rows(statement("show", "read_instants"), id=job_id)[0]
        row |= {name: _rows.instant(value) for name, value in instants.items()}
    shown = {key: row[key] for key in ("id", "task", "queue", "state", "priority")}
    shown |= {key: row[key] for key in ("run_count", "attempt", "max_attempts", "snoozes")}
    shown |= {key: row[key] for key in ("created_at", "run_at", "started_at", "finished_at")}
    shown |= {key: row[key] for key in ("cancel_requested_at", "expires_at", "expired")}
    shown |= {key: row[key] for key in ("unique_key", "limit_key", "worker_id")}
    shown |= {key: Json(row[key]) for key in ("meta", "errors")}
    if args:
        shown["args"] = Json(row["args"])
    if result:
        shown["result"] = Json(row["result"]) if row["result"] is not None else None
    show_one(shown, as_json=as_json, fields=shown | {"errors": _shown_errors(row["errors"])})


@app.command("requeue")
def requeue(job_ids: JobIds, as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """Return failed jobs to the queue: all that are named, or none.

    They keep their attempt, errors and arguments, and get one more attempt if none is left.
    """
    from akadze import sync

    ids = _checked(job_ids)
    with opened(database_url) as connection:
        for job_id in ids:
            sync.requeue(connection, job_id)
        rows = _read(connection, ids)
    _done(rows, as_json, "it waits for a worker again")


@app.command("cancel")
def cancel(job_ids: JobIds, as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """Ask queued or running jobs to stop: all that are named, or none.

    A worker of its queue ends a queued job. A running job is not interrupted: it ends as cancelled unless its body
    returns a result first. A job that has ended stays as it is.
    """
    from akadze import sync

    ids = _checked(job_ids)
    with opened(database_url) as connection:
        for job_id in ids:
            sync.request_cancel(connection, job_id)
        rows = _read(connection, ids)
    _done(rows, as_json, "it is asked to stop")


def _checked(job_ids: Sequence[int]) -> list[int]:
    """The ids in the order in which rows are locked everywhere."""
    from akadze._options import check_job_id

    with checking():
        return sorted({check_job_id(job_id) for job_id in job_ids})


def _read(connection: psycopg.Connection[Any], ids: Sequence[int]) -> list[dict[str, Any]]:
    from akadze import _rows
    from akadze._connections import sync_caller
    from akadze._statement import statement

    rows = sync_caller(connection).rows(statement("jobs", "read_jobs"), ids=list(ids))
    missing = set(ids) - {row["id"] for row in rows}
    if missing:
        fail(f"there is no job {min(missing)}: it may have been deleted after the retention time")
    return [row | {name: _rows.instant(row[name]) for name in ("cancel_requested_at", "expires_at")} for row in rows]


def _done(rows: Sequence[dict[str, Any]], as_json: bool, done: str) -> None:
    shown = [
        {key: row[key] for key in ("id", "task", "queue", "state", "attempt", "max_attempts", "cancel_requested_at")}
        for row in rows
    ]
    if len(shown) > 1 or as_json:
        show(shown, as_json=as_json, empty="No jobs.")
        return
    row = shown[0]
    if row["state"] in FINAL:
        done = "it has ended and stays as it is"
    elif row["cancel_requested_at"] and row["state"] == QUEUED:
        done = "a worker of its queue cancels it"
    show_one(row, as_json=as_json, sentence=f"Job {row['id']} of task {row['task']} is {row['state']}: {done}.")


def _narrow(row: dict[str, Any], *, priorities: bool) -> dict[str, Any]:
    """A row for a terminal: of its three instants the one that its state asks for."""
    word, instant = "due", row["run_at"]
    if row["state"] == RUNNING:
        word, instant = "since", row["started_at"]
    elif row["state"] in FINAL:
        word, instant = "ended", row["finished_at"]
    return {
        "id": row["id"],
        "task": row["task"],
        "queue": row["queue"],
        "state": row["state"],
        "priority": row["priority"] if priorities else None,
        "attempt": f"{row['attempt']}/{row['max_attempts']}",
        "when": f"{word} {shown_time(instant)}" if instant is not None else None,
        "meta": row["meta"],
    }


def _meta(pairs: Sequence[str]) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            fail(f"--meta is {pair!r}: write it as key=value", 2)
        if key in meta:
            fail(f"--meta has the key {key!r} twice: a job has one value for each", 2)
        try:
            meta[key] = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            meta[key] = text
    return meta


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _as_json(value: Any) -> Json:
    return Json(json.dumps(value, ensure_ascii=False))
