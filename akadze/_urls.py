"""Database URLs: what SQLAlchemy takes, what libpq takes, and what may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

from sqlalchemy.engine import URL

from akadze.errors import AkadzeError

__all__ = ["libpq_url", "sqlalchemy_url", "without_password"]

_PSYCOPG = ("postgresql", "postgres", "postgresql+psycopg")
_ASYNCPG = "postgresql+asyncpg"
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
#: Parameters that only asyncpg or SQLAlchemy's dialect for it know; libpq refuses what it does not know.
_ASYNCPG_ONLY = frozenset(
    {
        "async_fallback", "command_timeout", "direct_tls", "max_cacheable_statement_size",
        "max_cached_statement_lifetime", "prepared_statement_cache_size", "prepared_statement_name_func",
        "server_settings", "statement_cache_size", "timeout",
    }
)  # fmt: skip
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.\-_]+|[0-9A-Fa-f:.]+")
_HOST_AND_PORT = re.compile(r"([A-Za-z0-9.\-]*):(\d*)")


@dataclass(slots=True)
class _Address:
    user: str | None = None
    password: str | None = None
    database: str | None = None
    hosts: list[tuple[str, str]] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


def sqlalchemy_url(url: str) -> str:
    """Return the URL for SQLAlchemy's psycopg dialect; one for asyncpg is returned as given.

    Takes what libpq takes as a URL (several hosts, socket directories) and what SQLAlchemy renders. In parameters a
    plus sign means a space, as SQLAlchemy writes it. Raises AkadzeError for anything else; it never shows a password.
    """
    scheme, rest = _split(url)
    if scheme == _ASYNCPG:
        return _trimmed(url)
    if scheme not in _PSYCOPG:
        raise _unknown(scheme)
    address = _parsed(rest)
    host, port, options = _placed(address)
    database = address.database
    if database and ("?" in database or "%" in database):
        # SQLAlchemy before 2.1 writes and reads a name after the slash without quoting.
        options["dbname"], database = database, None
    rendered = URL.create(
        "postgresql+psycopg",
        username=address.user,
        password=address.password,
        host=host,
        port=int(port) if port else None,
        database=database,
        query=address.options | options,
    )
    return rendered.render_as_string(hide_password=False)


def libpq_url(url: str, *, database: str | None = None) -> str:
    """Return the URL for ``psycopg.connect``, from any form that ``sqlalchemy_url`` takes or gives, asyncpg's too.

    ``database`` takes the place of the one that the URL names, wherever it does so.

    Raises AkadzeError for anything else; it never shows a password.
    """
    scheme, rest = _split(url)
    if scheme not in (*_PSYCOPG, _ASYNCPG):
        raise _unknown(scheme)
    address = _parsed(rest)
    if database is not None:
        address.database = database
    host, port, hosts = _placed(address)
    user = "" if address.user is None else quote(address.user, safe="")
    password = "" if address.password is None else f":{quote(address.password, safe='')}"
    at = "@" if user or password else ""
    place = "" if host is None else f"[{host}]" if ":" in host else host
    place += f":{port}" if port else ""
    path = "" if address.database is None else quote(address.database, safe="")
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='/,')}" for name, value in (address.options | hosts).items()
    )
    return f"postgresql://{user}{password}{at}{place}/{path}{'?' if query else ''}{query}"


def _unknown(scheme: str, *, empty: bool = False) -> AkadzeError:
    known = re.fullmatch(r"[a-z][a-z0-9+.\-]{0,30}", scheme) is not None
    given = f"begins with {scheme}://" if known else "is empty" if empty else "has no scheme that akadze knows"
    return AkadzeError(
        f"the database URL {given}; give one that begins with postgresql://, postgres:// or postgresql+psycopg:// "
        "(or, for an engine of asyncpg, postgresql+asyncpg://)"
    )


def _split(url: object) -> tuple[str, str]:
    if not isinstance(url, str):
        raise AkadzeError(
            f"the database URL must be a str, not {type(url).__name__}; "
            "of a SQLAlchemy URL pass url.render_as_string(hide_password=False)"
        )
    if not url.isascii() and any("\ud800" <= letter <= "\udfff" for letter in url):
        raise AkadzeError("the database URL holds a byte that is no UTF-8: write it as %, and two hexadecimal digits")
    scheme, colon, rest = _trimmed(url).partition("://")
    if not colon:
        raise _unknown("", empty=not scheme)
    return scheme.lower(), rest


def _trimmed(url: str) -> str:
    # The line end of a secrets file; a space may belong to a database name, as SQLAlchemy renders it.
    return url.lstrip().rstrip("\r\n\t")


def _parsed(rest: str) -> _Address:
    credentials, place, query = _cut(rest)
    address = _Address()
    if credentials is not None:
        user, colon, password = credentials.partition(":")
        address.user = unquote(user)
        address.password = unquote(password) if colon else None
    authority, slash, database = place.partition("/")
    address.database = unquote(database) if slash and database else None
    if authority:
        address.hosts = [_host_and_port(part) for part in authority.split(",")]
    hosts: list[tuple[str, str]] = []
    for name, value in parse_qsl(query):
        if name == "host":
            hosts += [_option_host(part) for part in value.split(",")]
        elif name == "ssl":  # asyncpg's and JDBC's word
            address.options["sslmode"] = value if value in _SSL_MODES else _ssl_mode(value)
        elif name not in _ASYNCPG_ONLY:
            address.options[name] = value
    if hosts:
        address.hosts = hosts
    # As in libpq, they win over what stands before the @; and of a parameter SQLAlchemy would show the password.
    address.user = address.options.pop("user", address.user)
    address.password = address.options.pop("password", address.password)
    address.database = address.options.pop("dbname", address.database)
    if address.password is not None and address.user is None:
        address.user = ""  # which both take for none, and without which SQLAlchemy writes no password
    ports = address.options.pop("port", None)
    if ports is not None:
        _use_ports(address, ports.split(","))
    for _, port in address.hosts:
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise AkadzeError(
                "the port in the database URL is not a number from 1 to 65535; "
                "if a part of the password stands there, write its special characters percent-encoded (/ as %2F)"
            )
    return address


def _cut(rest: str) -> tuple[str | None, str, str]:
    """Split into credentials, hosts with database, and query. Credentials end at the last @ before / or ?."""
    end = rest.find("/")
    head = rest if end < 0 else rest[:end]
    at = head.find("@")
    if at >= 0:
        question = head.find("?", at)
        at = head.rfind("@", 0, question if question >= 0 else len(head))
    credentials, place = (None, rest) if at < 0 else (rest[:at], rest[at + 1 :])
    place, _, query = place.partition("?")
    return credentials, place, query


def _host_and_port(part: str) -> tuple[str, str]:
    if part.startswith("["):
        host, bracket, port = part[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise AkadzeError("the database URL has an IPv6 address that is not closed by ]; write it as [::1]:5432")
        return host, port[1:]
    host, _, port = part.partition(":")
    return unquote(host), port


def _option_host(part: str) -> tuple[str, str]:
    match = _HOST_AND_PORT.fullmatch(part)
    return (match[1], match[2]) if match else (part, "")


def _ssl_mode(value: str) -> str:
    return "disable" if value.lower() in ("false", "0", "off", "no") else "require"


def _use_ports(address: _Address, ports: list[str]) -> None:
    if not address.hosts:
        address.hosts = [("", "")] * len(ports)
    if len(ports) == 1:
        ports *= len(address.hosts)
    if len(ports) != len(address.hosts):
        raise AkadzeError("the database URL has another number of ports than of hosts; give one port for each, or one")
    address.hosts = [(host, port) for (host, _), port in zip(address.hosts, ports, strict=True)]


def _placed(address: _Address) -> tuple[str | None, str | None, dict[str, str]]:
    """Host and port for before the slash, or options: SQLAlchemy and libpq read several hosts alike only as those."""
    if len(address.hosts) == 1 and _PLAIN_HOST.fullmatch(address.hosts[0][0]):
        host, port = address.hosts[0]
        return host, port or None, {}
    options = {}
    if any(host for host, _ in address.hosts):
        options["host"] = ",".join(host for host, _ in address.hosts)
    if any(port for _, port in address.hosts):
        options["port"] = ",".join(port for _, port in address.hosts)
    return None, None, options


#: scheme://user: and then the password: to the last @ of the word, without quotes if it can be, else on the same line.
#: A port with what follows it is no password.
_CREDENTIALS = re.compile(
    r"""(://[^\s:/?\#\["'<>]*):
        (?!\d{1,5}(?:[/?\#\s,;"')>\]]|$))
        (?:[^\s"'<>]*@|\S*@|\S[^\n@]{0,200}@)
    """,
    re.VERBOSE,
)
_PARAMETER = re.compile(
    r"""((?<!hide_)(?:password|passwd|pwd)
        (?:\s*=\s*|["']\s*:\s*|\s+(?=')))
        (?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|(?:\\.|[^\s&\\])+)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def without_password(text: str) -> str:
    """Return the text with the passwords in URLs (``user:secret@``) and in ``password=...`` replaced by ``***``."""
    if "://" in text:
        text = _CREDENTIALS.sub(r"\1:***@", text)
    return _PARAMETER.sub(r"\1***", text)
