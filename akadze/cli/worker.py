"""``akadze worker``."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Annotated, Any

import typer

from akadze.cli.database import checking, connectable
from akadze.cli.durations import duration
from akadze.cli.logs import LEVELS
from akadze.cli.options import DATABASE_URL, OtherDatabaseUrl


def _level(text: str) -> str:
    if text.lower() not in LEVELS:
        raise typer.BadParameter(f"{text!r} is no level: give one of {', '.join(LEVELS)}")
    return text.lower()


def _duration(name: str, default: str, about: str) -> Any:
    return typer.Option(
        name, metavar="DURATION", parser=duration, show_default=False, help=f"{about} [default: {default}]"
    )


def worker(
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP",
            show_default=False,
            help="The app as module:attribute. Modules of the current directory are found.",
        ),
    ],
    slots: Annotated[
        int | None,
        typer.Option("--slots", metavar="N", show_default=False, help="Jobs at once, for each queue. [default: 1]"),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            show_default=False,
            help="A queue to claim from; can be given several times. [default: all queues of the app]",
        ),
    ] = None,
    fair: Annotated[
        bool, typer.Option("--fair", help="Share slots across limit keys within a priority; else oldest first.")
    ] = False,
    heartbeat_interval: Annotated[
        timedelta | None, _duration("--heartbeat-interval", "5s", "How often the worker shows that it is alive.")
    ] = None,
    heartbeat_ttl: Annotated[
        timedelta | None,
        _duration("--heartbeat-ttl", "30s", "Without a heartbeat for this long its jobs go to other workers."),
    ] = None,
    poll_interval: Annotated[
        timedelta | None, _duration("--poll-interval", "1s", "How often an idle worker looks for jobs.")
    ] = None,
    shutdown_timeout: Annotated[
        timedelta | None,
        _duration("--shutdown-timeout", "10s", "How long running jobs may take to end after the first signal."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            max=256,
            show_default=False,
            help="Worker processes, each with slots of its own; one that dies is replaced. [default: 1]",
        ),
    ] = 1,
    no_notify: Annotated[
        bool, typer.Option("--no-notify", help="Find new jobs by polling alone, without LISTEN.")
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            parser=_level,
            show_default=False,
            help=f"What to log on stderr: {', '.join(LEVELS)}. If the app sets up logging itself, it is the level of "
            "akadze's loggers only. [default: info]",
        ),
    ] = None,
    database_url: OtherDatabaseUrl = "",
) -> None:
    """Run the jobs and schedules of an app.

    It ends at SIGTERM or Ctrl-C: it takes no new jobs and waits for the running ones, up to the shutdown timeout. Then,
    or at a second signal, it hands them back to the queue without spending an attempt.

    The database is that of the app, unless --database-url names another. Durations are seconds, or a number with ms, s,
    m, h or d.
    """
    from akadze.cli.logs import prepare_logs, settle_logs

    if database_url:
        connectable(database_url)
        os.environ[DATABASE_URL] = database_url
    if not no_notify and os.environ.get("AKADZE_LISTEN_URL"):
        from akadze._worker.connect import listen_url

        with checking():
            listen_url()
    if processes > 1:
        from akadze._worker.processes import Supervisor, command_of
        from akadze.cli.load import current_directory

        settle_logs(prepare_logs(), log_level)
        raise typer.Exit(Supervisor(command_of(sys.argv[1:], current_directory()), processes).run())

    from akadze._worker.processes import end_with_supervisor
    from akadze.cli.load import check_database, load_app
    from akadze.cli.process import serve

    supervised = end_with_supervisor()
    handler = prepare_logs()
    loaded = load_app(app)
    settle_logs(handler, log_level)
    given = {
        "queues": queue or None,
        "slots": slots,
        "heartbeat_interval": heartbeat_interval,
        "heartbeat_ttl": heartbeat_ttl,
        "poll_interval": poll_interval,
        "shutdown_timeout": shutdown_timeout,
    }
    from akadze.worker import Worker

    with checking():
        if database_url:
            loaded._use_database(database_url)  # noqa: SLF001 - not for others: it has to come before any use
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        chosen = Worker(loaded, fair=fair, notify=not no_notify, **options)
        check_database(loaded)
    raise typer.Exit(serve(chosen, supervised=supervised))
