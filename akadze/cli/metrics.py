"""``akadze metrics``."""

from __future__ import annotations

from akadze.cli.database import opened
from akadze.cli.options import DatabaseUrl
from akadze.cli.output import write


def metrics(database_url: DatabaseUrl = "") -> None:
    """Print metrics for Prometheus.

    Jobs by queue and state, the wait of the oldest ready job, running jobs, and pauses, in the text format.
    """
    from akadze.sync.metrics import render_metrics

    with opened(database_url, reading=True) as connection:
        text = render_metrics(connection)
    write(text)
