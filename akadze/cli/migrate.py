"""``akadze migrate``."""

from __future__ import annotations

from akadze.cli.database import connectable, telling_errors
from akadze.cli.options import AsJson, DatabaseUrl
from akadze.cli.output import show


def migrate(as_json: AsJson = False, database_url: DatabaseUrl = "") -> None:
    """Create the schema akadze, or bring it up to date. Safe to run again, and from many processes at once.

    Prints the migrations that the database has, and which of them are new.
    """
    from akadze import sync

    url = connectable(database_url)
    with telling_errors():
        before = sync.applied_versions(url)
        sync.migrate(url)
        after = sync.applied_versions(url)
    rows = [{"version": version, "new": version not in before} for version in after]
    show(rows, as_json=as_json, empty="No migrations.")
