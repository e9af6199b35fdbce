"""Django on psycopg2 where psycopg 3 is installed too, as akadze needs it: Django takes the newer one if it can."""

from __future__ import annotations

import importlib
import sys


def load_engine() -> None:
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "psycopg"}
    sys.modules["psycopg"] = None  # type: ignore[assignment]  # what makes an import fail
    try:
        importlib.import_module("django.db.backends.postgresql.base")
    finally:
        del sys.modules["psycopg"]
        sys.modules.update(hidden)
