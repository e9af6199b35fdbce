"""Options that many commands have."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from akadze.cli.output import fail

DATABASE_URL = "AKADZE_DATABASE_URL"


def _given_url(context: typer.Context, value: str) -> str:
    return value or context.find_root().params.get("database_url") or ""


def _chosen_url(context: typer.Context, value: str) -> str:
    if context.resilient_parsing:
        return value
    url = _given_url(context, value) or os.environ.get(DATABASE_URL)
    if not url:
        fail(f"no database is given: pass --database-url or set {DATABASE_URL}", 2)
    return str(url)


def _url_option(callback: Callable[[typer.Context, str], str], explained: str) -> Any:
    return typer.Option("--database-url", metavar="URL", callback=callback, show_default=False, help=explained)


DatabaseUrl = Annotated[
    str, _url_option(_chosen_url, f"The database; the environment variable {DATABASE_URL} is used without it.")
]
#: Of a command whose app has a database already: empty without the option.
OtherDatabaseUrl = Annotated[
    str, _url_option(_given_url, f"Another database than that of the app. Its modules find it in {DATABASE_URL}, too.")
]
#: Of the command that starts a server when no database is named: empty without the option.
OwnDatabaseUrl = Annotated[
    str, _url_option(_given_url, f"The database; without it that of {DATABASE_URL}, or one of the demo's own.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
