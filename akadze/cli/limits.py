"""``akadze limits``: list, set, clear."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from akadze.cli.database import checking, opened
from akadze.cli.durations import duration
from akadze.cli.options import AsJson, DatabaseUrl
from akadze.cli.output import show, show_one

if TYPE_CHECKING:
    from akadze.summaries import LimitSummary

app = typer.Typer(
    help="List the limits of limit keys, and set or clear one.", no_args_is_help=True, rich_markup_mode=None
)

LimitKey = Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="The limit_key of the jobs.")]


@app.command("list")
def list_(as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """List the keys that have a limit. A key without one is not limited."""
    from akadze import sync

    with opened(database_url, reading=True) as connection:
        limits = sync.list_limits(connection)
    show([_row(limit) for limit in limits], as_json=as_json, empty="No limits.")


@app.command("set")
def set_(
    key: LimitKey,
    max_running: Annotated[
        int | None, typer.Option("--max-running", metavar="N", help="At most this many jobs with the key run at once.")
    ] = None,
    max_starts: Annotated[
        int | None, typer.Option("--max-starts", metavar="N", help="At most this many start within the window.")
    ] = None,
    window: Annotated[
        timedelta | None,
        typer.Option(
            "--window",
            metavar="DURATION",
            parser=duration,
            help="The window of --max-starts: seconds, or a number with ms, s, m, h or d. Given together with it.",
        ),
    ] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = "",
) -> None:
    """Set the limits of a key.

    They hold in the whole cluster, from the next claim on. What is not given keeps its value. 0 lets nothing start.
    """
    from akadze import sync
    from akadze._options import check_limit

    with checking():
        check_limit(key, max_running, max_starts, window, named=lambda name: f"--{name.replace('_', '-')}")
    with opened(database_url) as connection:
        sync.set_limit(connection, key, max_running, max_starts=max_starts, window=window)
        row = next(_row(limit) for limit in sync.list_limits(connection) if limit.key == key)
    show_one(row, as_json=as_json, sentence=f"Key {key}: {_words(row)}.")


@app.command("clear")
def clear(key: LimitKey, as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """Take the limits of a key away. Nothing changes if it has none."""
    from akadze import sync
    from akadze._options import check_limit_key

    with checking():
        check_limit_key(key)
    with opened(database_url) as connection:
        sync.clear_limit(connection, key)
    row = {"key": key, "max_running": None, "max_starts": None, "window_seconds": None}
    show_one(row, as_json=as_json, sentence=f"Key {key} has no limits.")


def _row(limit: LimitSummary) -> dict[str, Any]:
    return {
        "key": limit.key,
        "max_running": limit.max_running,
        "max_starts": limit.max_starts,
        "window_seconds": limit.window.total_seconds() if limit.window is not None else None,
    }


def _words(row: dict[str, Any]) -> str:
    words = []
    if row["max_running"] is not None:
        words.append(f"at most {row['max_running']} run at once")
    if row["max_starts"] is not None:
        words.append(f"at most {row['max_starts']} start within {row['window_seconds']:g} s")
    return ", ".join(words)
