"""``akadze workers``: list."""

from __future__ import annotations

import typer

from akadze.cli.database import opened
from akadze.cli.options import AsJson, DatabaseUrl
from akadze.cli.output import show

app = typer.Typer(help="List the registered workers.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def workers() -> None:
    """List the registered workers."""


@app.command("list")
def list_(as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """List the registered workers, the latest heartbeat first. A line repeats queue= for each queue of the worker.

    One that was killed stays in the list with its last heartbeat until another worker clears it away, which takes a
    minute or two.
    """
    from akadze import sync

    with opened(database_url, reading=True) as connection:
        found = sync.list_workers(connection)
    rows = [
        {
            "id": str(worker.id),
            "hostname": worker.hostname,
            "pid": worker.pid,
            "queue" if not as_json else "queues": worker.queues,
            "started_at": worker.started_at,
            "heartbeat_at": worker.heartbeat_at,
        }
        for worker in found
    ]
    show(rows, as_json=as_json, empty="No workers.", below=("id", "queue", "started_at", "hostname"))
