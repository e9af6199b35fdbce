"""``manage.py akadze_jobs``."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandParser

from akadze._states import STATES
from akadze.cli import jobs
from akadze.contrib.django._commands import add_database, own_command, url_of


class Command(BaseCommand):
    """Jobs: list, show, requeue, cancel."""

    help = "List jobs, look at one, and requeue or cancel them. The command `akadze jobs` can do more."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        listing = verbs.add_parser("list", help="List jobs, the highest priority first.")
        listing.add_argument("--queue", metavar="NAME", help="Only jobs of this queue.")
        listing.add_argument("--state", choices=STATES, help="Only jobs in this state.")
        listing.add_argument("--meta", metavar="KEY=VALUE", action="append", help="Only jobs whose meta has this pair.")
        listing.add_argument("--limit", metavar="N", type=int, default=50, help="At most this many jobs.")
        showing = verbs.add_parser("show", help="Show one job with its errors.")
        showing.add_argument("id", metavar="ID", type=int)
        showing.add_argument("--args", dest="show_args", action="store_true", help="Show the arguments, too.")
        showing.add_argument("--result", action="store_true", help="Show the result, too.")
        requeuing = verbs.add_parser("requeue", help="Return failed jobs to the queue: all that are named, or none.")
        cancelling = verbs.add_parser("cancel", help="Ask queued or running jobs to stop: all that are named, or none.")
        for verb in (requeuing, cancelling):
            verb.add_argument("ids", metavar="ID", type=int, nargs="+")
        for verb in (listing, showing, requeuing, cancelling):
            add_database(verb)
            verb.add_argument("--json", action="store_true", help="Print one JSON document.")

    def handle(self, *_args: Any, **options: Any) -> None:
        url = url_of(options["database"])
        common: dict[str, Any] = {"as_json": options["json"], "database_url": url}
        with own_command(self.stdout):
            match options["verb"]:
                case "list":
                    chosen = {name: options[name] for name in ("queue", "state", "meta", "limit")}
                    jobs.list_(**chosen, **common)
                case "show":
                    jobs.show_(options["id"], args=options["show_args"], result=options["result"], **common)
                case "requeue":
                    jobs.requeue(options["ids"], **common)
                case "cancel":
                    jobs.cancel(options["ids"], **common)
