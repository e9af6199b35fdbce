"""A named block of a .sql file, in the forms that the drivers take."""

from __future__ import annotations

import re
from functools import cache, cached_property
from importlib.resources import files

from sqlalchemy import TextClause, text

_BLOCK = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_QUERY = re.compile(r"^(select|with)\b|\breturning\b")
_BIND = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class Statement:
    """One SQL statement with ``:name`` binds.

    ``names`` are its binds in the order in which they first appear. ``returns_rows`` tells whether it has an answer,
    if only an empty one: a query, or a change with ``returning``.
    """

    def __init__(self, name: str, sql: str) -> None:
        self.name = name
        # Comments go: they may hold colons and percent signs, and the server would have to read them each time.
        lines = (line.rstrip() for line in sql.splitlines())
        self.sql = "\n".join(line for line in lines if line and not line.lstrip().startswith("--"))
        self.names = tuple(dict.fromkeys(_BIND.findall(self.sql)))
        self.returns_rows = _QUERY.search(self.sql) is not None
        #: The names of the columns of its answer, once somebody has seen one.
        self.columns: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"Statement({self.name})"

    @cached_property
    def clause(self) -> TextClause:
        """For SQLAlchemy."""
        return text(self.sql)

    @cached_property
    def pyformat(self) -> str:
        """For psycopg, psycopg2 and Django: ``%(name)s``."""
        return _BIND.sub(r"%(\1)s", self.sql.replace("%", "%%"))

    @cached_property
    def numbered(self) -> str:
        """For psycopg's raw cursors and asyncpg: ``$1`` in the order of ``names``."""
        places = {name: f"${place}" for place, name in enumerate(self.names, 1)}
        return _BIND.sub(lambda match: places[match[1]], self.sql)


@cache
def _blocks(file: str) -> dict[str, Statement]:
    parts = _BLOCK.split((files("akadze") / "_sql" / f"{file}.sql").read_text(encoding="utf-8"))
    return {name: Statement(f"{file}.{name}", sql) for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def statement(file: str, name: str) -> Statement:
    """Return the block ``name`` of ``akadze/_sql/<file>.sql``."""
    return _blocks(file)[name]
