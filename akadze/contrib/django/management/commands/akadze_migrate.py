"""``manage.py akadze_migrate``."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandParser

from akadze.cli.migrate import migrate
from akadze.contrib.django._commands import add_database, own_command, url_of


class Command(BaseCommand):
    """Applies akadze's migrations, without Django's."""

    help = (
        "Create the schema akadze, or bring it up to date. `manage.py migrate` does it as well, with the migrations of "
        "this app; both may be used, in any order."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_database(parser)
        parser.add_argument("--json", action="store_true", help="Print one JSON document.")

    def handle(self, *_args: Any, **options: Any) -> None:
        url = url_of(options["database"])
        with own_command(self.stdout):
            migrate(as_json=options["json"], database_url=url)
