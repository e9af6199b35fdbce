"""The app of the worker: `akadze worker worker:app`. Each task runs in an app context of its own."""

from __future__ import annotations

from tasks import app
from web import create_app

__all__ = ["app", "web"]

web = create_app()
app.hooks.around_run.append(lambda job: web.app_context())
