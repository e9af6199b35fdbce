"""The tree of commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from akadze.cli import bench, demo, jobs, limits, metrics, migrate, queues, worker, workers
from akadze.cli.options import DATABASE_URL
from akadze.cli.output import print_error, silence, write

# No colour in help and no boxes: the page of the documentation is made from it, and it starts faster. Exceptions are
# printed as Python prints them: typer's own way shows the values of variables, which may be secrets.
app = typer.Typer(
    name="akadze",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from akadze import __version__

        write(f"akadze {__version__}\n")
        raise typer.Exit


@app.callback()
def akadze(
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url",
            metavar="URL",
            help=f"The database, for any command that takes this option; else {DATABASE_URL} names it.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A task queue whose broker is PostgreSQL: run workers, and look after jobs, queues and limits."""


app.command()(worker.worker)
app.command()(migrate.migrate)
app.add_typer(jobs.app, name="jobs")
app.add_typer(queues.app, name="queues")
app.add_typer(limits.app, name="limits")
app.add_typer(workers.app, name="workers")
app.command()(metrics.metrics)
app.command()(bench.bench)
app.command()(demo.demo)


def run() -> None:
    """Run the command line of this process, and end the process."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the life of the process
        # A terminal of another encoding shows a name with escapes, rather than nothing.
        getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        app(prog_name="akadze")
    except OSError as error:
        # typer writes help by itself. It comes before any module of the user's is loaded, whose errors are shown whole.
        if "--help" not in sys.argv:
            raise
        silence(sys.stdout)
        print_error(f"the output cannot be written: {error.strerror or error}")
        sys.exit(1)
