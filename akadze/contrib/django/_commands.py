"""What the management commands share: akadze's own command line, on a database of the settings."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import Any

import typer
from django.core.management import CommandError, CommandParser

from akadze.cli.durations import duration
from akadze.contrib.django._database import database_url
from akadze.errors import AkadzeError


def add_database(parser: CommandParser) -> None:
    parser.add_argument("--database", metavar="ALIAS", help="The database; by default that of the setting AKADZE.")


def url_of(alias: str | None) -> str:
    """Return the URL for akadze's own commands. Raises CommandError for an alias that will not do."""
    with telling_errors():
        return str(database_url(alias))


@contextmanager
def telling_errors() -> Iterator[None]:
    """Tell what the caller did wrong as Django's commands do."""
    try:
        yield
    except AkadzeError as error:
        raise CommandError(str(error), returncode=2) from error


@contextmanager
def own_command(stdout: Any) -> Iterator[None]:
    """Run a function of akadze's command line: its output goes to ``stdout``, its failure is a CommandError."""
    told = io.StringIO()
    try:
        with redirect_stdout(stdout), redirect_stderr(told):
            yield
    except typer.Exit as end:
        if end.exit_code:
            raise CommandError(told.getvalue().strip().removeprefix("error: "), returncode=end.exit_code) from None


def typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser of akadze's command line as argparse calls them."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except typer.BadParameter as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def a_duration(text: str) -> timedelta:
    found: timedelta = typed(duration)(text)
    return found
