"""The app of a Django project, and what it needs to run tasks that use Django."""

from __future__ import annotations

import importlib
from functools import cache

import django

from akadze._article import with_article
from akadze.app import Akadze
from akadze.contrib.django._connections import FreshConnections
from akadze.contrib.django._database import database_url
from akadze.contrib.django._settings import read_settings
from akadze.errors import AkadzeError


def get_app() -> Akadze:
    """Return the app that the setting AKADZE names, installed; without one, an app for the tasks of ``django.tasks``.

    Raises AkadzeError if there is no such app. An error inside its module is raised as it is.
    """
    path = read_settings().app
    app = _own_app() if path is None else _import(path)
    install(app)
    return app


def install(app: Akadze) -> None:
    """Make an app fit to run tasks that use Django. Safe to call again.

    Runs of tasks close Django's database connections as requests do. If a backend of ``TASKS`` is akadze's, the app
    learns to run the tasks of ``django.tasks``. The management commands and ``get_app`` do it for the app of the
    settings; call it for an app that ``akadze worker`` is given.
    """
    if FreshConnections not in app.hooks.around_run:
        # The outermost, so that other context managers may use the database.
        app.hooks.around_run.insert(0, FreshConnections)
    if django.VERSION >= (6, 0):
        from akadze.contrib.django._task_runs import register_where_used

        register_where_used(app)


@cache
def _own_app() -> Akadze:
    return Akadze(database_url=database_url)


def _import(path: str) -> Akadze:
    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise AkadzeError(f"AKADZE['APP'] is {path!r}, but there is no module {error.name!r}") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, Akadze):
        found = f"is {with_article(type(app))}" if hasattr(module, attribute) else "is not there"
        raise AkadzeError(f"AKADZE['APP'] is {path!r}, but {attribute!r} {found}: name an Akadze app of that module")
    return app
