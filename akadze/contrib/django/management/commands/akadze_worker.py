"""``manage.py akadze_worker``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django
from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser
from django.db import connections

from akadze._worker.connect import listen_url
from akadze.cli.logs import LEVELS, prepare_logs, settle_logs
from akadze.cli.process import serve
from akadze.contrib.django._app import get_app
from akadze.contrib.django._commands import a_duration, telling_errors
from akadze.worker import Worker

_DURATIONS = {
    "heartbeat_interval": "How often the worker shows that it is alive. [default: 5s]",
    "heartbeat_ttl": "Without a heartbeat for this long its jobs go to other workers. [default: 30s]",
    "poll_interval": "How often an idle worker looks for jobs. [default: 1s]",
    "shutdown_timeout": "How long running jobs may take to end after the first signal. [default: 10s]",
}


class Command(BaseCommand):
    """Runs a worker of the project's app."""

    help = (
        "Run the jobs and schedules of the app that AKADZE['APP'] names, and the tasks of django.tasks. It ends at "
        "SIGTERM or Ctrl-C: it takes no new jobs and waits for the running ones, up to the shutdown timeout. Then, or "
        "at a second signal, it hands them back to the queue without spending an attempt. Durations are seconds, or a "
        "number with ms, s, m, h or d."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--slots", metavar="N", type=int, help="Jobs at once, for each queue. [default: 1]")
        parser.add_argument(
            "--queue",
            metavar="NAME",
            action="append",
            help="A queue to claim from; can be given several times. [default: all queues of the app and of TASKS]",
        )
        parser.add_argument("--fair", action="store_true", help="Share slots across limit keys within a priority.")
        for name, about in _DURATIONS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="DURATION", type=a_duration, help=about)
        parser.add_argument("--no-notify", action="store_true", help="Find new jobs by polling alone, without LISTEN.")
        parser.add_argument("--log-level", choices=LEVELS, help="What to log on stderr. [default: info]")
        parser.add_argument(
            "--reload", action="store_true", help="Start again when code changes. For development: needs DEBUG."
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["reload"] and not settings.DEBUG:
            raise CommandError("--reload is for development: it needs DEBUG = True", returncode=2)
        if options["reload"]:
            from akadze.contrib.django._reload import serve_and_reload

            serve_and_reload(lambda: self._worker(options))
            return
        worker = self._worker(options)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Until it serves there is nothing to wind up.
            signal.signal(number, lambda *_: os._exit(0))
        code = serve(worker)
        if code:
            sys.exit(code)

    def _worker(self, options: dict[str, Any]) -> Worker:
        handler = prepare_logs()
        with telling_errors():
            app = get_app()
        settle_logs(handler, options["log_level"])
        given = {name: options[name] for name in ("slots", *_DURATIONS) if options[name] is not None}
        with telling_errors():
            if not options["no_notify"]:
                listen_url()
            worker = Worker(
                app,
                queues=options["queue"] or sorted({*Worker(app).queues, *_queues_of_tasks()}),
                fair=options["fair"],
                notify=not options["no_notify"],
                **given,
            )
        worker._queues_of_others = _queues_of_tasks()  # noqa: SLF001 - Django's tasks are all one task of the app
        # What the checks have opened; a worker has connections of its own.
        connections.close_all()
        return worker


def _queues_of_tasks() -> set[str]:
    """Return the queues that the setting TASKS names for akadze."""
    if django.VERSION < (6, 0):
        return set()
    from akadze.contrib.django._task_runs import used_queues

    return used_queues() or set()
