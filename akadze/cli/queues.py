"""``akadze queues``: list, pause, resume."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from akadze._states import STATES
from akadze.cli.database import checking, opened
from akadze.cli.options import AsJson, DatabaseUrl
from akadze.cli.output import show, show_one

app = typer.Typer(
    help="List queues with their jobs, and pause or resume one.", no_args_is_help=True, rich_markup_mode=None
)

QueueName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Name of the queue.")]


@app.command("list")
def list_(as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """List queues with their jobs in each state. Those without jobs are shown if they are paused."""
    from akadze import sync

    with opened(database_url, reading=True) as connection:
        counts = sync.queue_snapshot(connection).counts
        paused = sync.list_paused_queues(connection)
    rows: dict[str, dict[str, Any]] = {
        queue: {"queue": queue, "paused": queue in paused, **dict.fromkeys(STATES, 0)}
        for queue in sorted({count.queue for count in counts} | set(paused))
    }
    for count in counts:
        rows[count.queue][count.state] = count.jobs
    show(list(rows.values()), as_json=as_json, empty="No jobs, and no paused queue.")


@app.command("pause")
def pause(name: QueueName, as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """Start no more jobs of this queue. Running jobs finish. Nothing changes if it is paused already."""
    from akadze import sync
    from akadze._options import check_queue

    with checking():
        check_queue(name)
    with opened(database_url) as connection:
        sync.pause_queue(connection, name)
    show_one({"queue": name, "paused": True}, as_json=as_json, sentence=f"Queue {name} is paused.")


@app.command("resume")
def resume(name: QueueName, as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """Start jobs of this queue again. Nothing changes if it is not paused."""
    from akadze import sync
    from akadze._options import check_queue

    with checking():
        check_queue(name)
    with opened(database_url) as connection:
        sync.resume_queue(connection, name)
    show_one({"queue": name, "paused": False}, as_json=as_json, sentence=f"Queue {name} is not paused.")
