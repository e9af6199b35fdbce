"""akadze in a Django project: put ``akadze.contrib.django`` into ``INSTALLED_APPS``.

The setting ``AKADZE = {"APP": "project.jobs:app", "DATABASE": "default"}`` names the app whose tasks are run, and the
alias of the PostgreSQL database that holds its jobs. Both may be left out.
"""

from __future__ import annotations

from akadze.contrib.django._app import get_app, install
from akadze.contrib.django._completion import complete_tx
from akadze.contrib.django._database import database_url

__all__ = ["complete_tx", "database_url", "get_app", "install"]
