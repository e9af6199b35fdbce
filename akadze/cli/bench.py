"""``akadze bench``."""

from __future__ import annotations

from typing import Annotated

import typer

from akadze.cli.database import connectable, telling_errors
from akadze.cli.options import DatabaseUrl


def bench(
    database_url: DatabaseUrl = "",
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=100, metavar="N", help="How often each thing is measured.")
    ] = 3,
) -> None:
    """Measure akadze on a server of your own, beside plain SQL.

    It makes a database akadze_bench there, which needs the right to create databases, and drops it at the end. The
    figures are medians; a round takes about ten seconds, in which the server is busy.
    """
    import asyncio

    from akadze.bench import run

    address = connectable(database_url)
    with telling_errors():
        asyncio.run(run(address, rounds=rounds))
