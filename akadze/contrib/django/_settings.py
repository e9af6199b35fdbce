"""The setting AKADZE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from akadze._article import with_article
from akadze.errors import AkadzeError

_KEYS = ("APP", "DATABASE")


@dataclass(frozen=True, slots=True)
class Settings:
    """``app`` is ``module:attribute``, None where no app is named; ``database`` is an alias of ``DATABASES``."""

    app: str | None
    database: str


def read_settings() -> Settings:
    """Return the settings. Raises AkadzeError for a setting of the wrong form; whether it names something is not seen.

    Read anew each time, because tests override settings.
    """
    given = getattr(settings, "AKADZE", {})
    if not isinstance(given, Mapping):
        raise AkadzeError(f"the setting AKADZE is {with_article(type(given))}: it must be a dict, with keys of {_KEYS}")
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise AkadzeError(f"the setting AKADZE has the key {unknown[0]!r}: it takes {' and '.join(_KEYS)}")
    app, database = given.get("APP"), given.get("DATABASE", DEFAULT_DB_ALIAS)
    if app is not None and not _is_path(app):
        raise AkadzeError(f"AKADZE['APP'] is {app!r}: write it as module:attribute, for example project.jobs:app")
    if not isinstance(database, str):
        raise AkadzeError(f"AKADZE['DATABASE'] is {with_article(type(database))}: it must be an alias of DATABASES")
    return Settings(app, database)


def postgresql(alias: str | None) -> Any:
    """Return Django's connection of the alias, of that of the settings for None.

    Raises AkadzeError where there is no such alias, and for a database of another vendor.
    """
    if alias is None:
        alias = read_settings().database
    if alias not in connections:
        raise AkadzeError(f"DATABASES has no alias {alias!r}: name one of {', '.join(map(repr, connections))}")
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise AkadzeError(
            f"DATABASES[{alias!r}] is a {connection.vendor} database: akadze keeps its jobs in PostgreSQL, name the "
            "alias of one, as AKADZE['DATABASE'] for all of akadze"
        )
    return connection


def _is_path(given: Any) -> bool:
    if not isinstance(given, str):
        return False
    module, _, attribute = given.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
