"""What the migrations of this app do: akadze's own, on Django's connection."""

from __future__ import annotations

from typing import Any

from akadze._connections import sync_caller
from akadze._sync.schema import apply_pending
from akadze.contrib.django._settings import read_settings
from akadze.errors import AkadzeError


def apply_schema(_apps: Any, schema_editor: Any) -> None:
    """Apply akadze's pending migrations, all of this release; those that `akadze migrate` has applied stay.

    Only on the database of the setting AKADZE: `migrate` is run for others, too.
    """
    if schema_editor.connection.alias == read_settings().database:
        apply_pending(sync_caller(schema_editor.connection, error=AkadzeError))


def keep_schema(_apps: Any, _schema_editor: Any) -> None:
    """Leave the schema and its jobs where they are: `drop schema akadze cascade` is for somebody who knows."""
