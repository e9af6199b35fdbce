"""The URL of a database that Django's settings describe."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import quote

from psycopg import pq

from akadze._urls import without_password
from akadze.contrib.django._settings import postgresql, read_settings

#: In a URL they have a place of their own, or are Django's and akadze's own business.
_NOT_OPTIONS = frozenset({"user", "password", "dbname", "client_encoding"})


def database_url(alias: str | None = None) -> DatabaseURL:
    """Return the URL of a database of ``DATABASES``, for ``Akadze(database_url=...)``.

    ``alias`` is the one of the setting AKADZE unless it is given. The result is text, and a function too: an app that
    is given it asks again when it first connects. So ``Akadze(database_url=database_url())`` in a module that is
    imported before a test runner makes its database works on the database of the test.

    Raises AkadzeError for an alias that is not in ``DATABASES``, and for a database that is not PostgreSQL.
    """
    return DatabaseURL(read_settings().database if alias is None else alias)


class DatabaseURL(str):
    """The URL of a database alias as it was when this was made; called, it returns that of now."""

    __slots__ = ("_alias",)
    _alias: str

    def __new__(cls, alias: str) -> Self:
        self = super().__new__(cls, _url(alias))
        self._alias = alias
        return self

    def __call__(self) -> str:
        return _url(self._alias)

    def __getnewargs__(self) -> tuple[str]:
        return (self._alias,)

    def __repr__(self) -> str:
        return repr(without_password(str(self)))


def _url(alias: str) -> str:
    connection = postgresql(alias)
    # The engine's own answer: settings, what an engine of another package adds, and the name of a test database.
    given: dict[str, Any] = connection.get_connection_params()
    names = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - _NOT_OPTIONS
    options = {name: given[name] for name in names if given.get(name) is not None}
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        options["options"] = f"{options.get('options', '')} -c role={escaped}".strip()
    user = _quoted(given.get("user", ""))
    password = f":{_quoted(given['password'])}" if given.get("password") else ""
    at = "@" if user or password else ""
    # Host and port among the options: there they may be socket folders, or lists.
    query = "&".join(f"{name}={_quoted(value)}" for name, value in sorted(options.items()))
    return f"postgresql://{user}{password}{at}/{_quoted(given.get('dbname', ''))}{'?' if query else ''}{query}"


def _quoted(value: Any) -> str:
    return quote(str(int(value) if isinstance(value, bool) else value), safe="")
