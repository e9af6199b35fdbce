"""Options that many commands have."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from akadze.cli.output import fail

DATABASE_URL = "AKADZE_DATABASE_URL"


def _chosen_url(context: typer.Context, value: str) -> str:
    if context.resilient_parsing:
        return value
    url = value or context.find_root().params.get("database_url") or os.environ.get(DATABASE_URL)
    if not url:
        fail(f"no database is given: pass --database-url or set {DATABASE_URL}", 2)
    return str(url)


DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database-url",
        metavar="URL",
        callback=_chosen_url,
        show_default=False,
        help=f"The database; the environment variable {DATABASE_URL} is used without it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
