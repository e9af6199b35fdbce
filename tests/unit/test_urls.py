"""Contract, section 1: database URLs, judged by SQLAlchemy and by libpq."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import URL, make_url

from akadze._urls import libpq_url, sqlalchemy_url, without_password
from akadze.errors import AkadzeError


def by_sqlalchemy(url: str) -> dict[str, str]:
    """What SQLAlchemy hands to psycopg."""
    made = make_url(url)
    assert made.drivername == "postgresql+psycopg"
    _, options = PGDialect_psycopg().create_connect_args(made)
    # It writes a port for each of several hosts, an empty one where there is none.
    return {name: str(value) for name, value in options.items() if name != "port" or str(value).strip(",")}


def by_libpq(url: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(url).items()}


FORMS: list[tuple[str, dict[str, str]]] = [
    ("postgresql://", {}),
    ("postgresql:///db", {"dbname": "db"}),
    ("postgresql://h", {"host": "h"}),
    ("postgresql://h/", {"host": "h"}),
    ("postgresql://h:5433/db", {"host": "h", "port": "5433", "dbname": "db"}),
    ("postgresql://u@h/db", {"user": "u", "host": "h", "dbname": "db"}),
    ("postgresql://u:p@h/db", {"user": "u", "password": "p", "host": "h", "dbname": "db"}),
    ("postgres://u:p@h/db", {"user": "u", "password": "p", "host": "h", "dbname": "db"}),
    ("postgresql+psycopg://u:p@h/db", {"user": "u", "password": "p", "host": "h", "dbname": "db"}),
    ("  postgresql://u:p@h/db\n", {"user": "u", "password": "p", "host": "h", "dbname": "db"}),
    ("PostgreSQL://h/db", {"host": "h", "dbname": "db"}),
    ("postgresql://u:p%40%2F%3A%25%20%2Bx@h/db", {"user": "u", "password": "p@/:% +x", "host": "h", "dbname": "db"}),
    ("postgresql://u:p@ss#w@h/db", {"user": "u", "password": "p@ss#w", "host": "h", "dbname": "db"}),
    ("postgresql://[::1]:5433/db", {"host": "::1", "port": "5433", "dbname": "db"}),
    ("postgresql://[::1]/db", {"host": "::1", "dbname": "db"}),
    (
        "postgresql://u:p@h1:5433,h2:5434/db?target_session_attrs=read-write",
        {"user": "u", "password": "p", "host": "h1,h2", "port": "5433,5434", "dbname": "db",
         "target_session_attrs": "read-write"},
    ),
    ("postgresql://h1,h2/db", {"host": "h1,h2", "dbname": "db"}),
    ("postgresql://h1:5433,h2/db", {"host": "h1,h2", "port": "5433,", "dbname": "db"}),
    ("postgresql:///db?host=h1,h2&port=5433", {"host": "h1,h2", "port": "5433,5433", "dbname": "db"}),
    ("postgresql:///db?host=h1,h2&port=5433,5434", {"host": "h1,h2", "port": "5433,5434", "dbname": "db"}),
    ("postgresql+psycopg:///db?host=h1:5433&host=h2:5434", {"host": "h1,h2", "port": "5433,5434", "dbname": "db"}),
    ("postgresql+psycopg:///db?host=h1%3A5433", {"host": "h1", "port": "5433", "dbname": "db"}),
    ("postgresql://postgres@/postgres?host=/tmp/s%20x", {"user": "postgres", "host": "/tmp/s x", "dbname": "postgres"}),
    ("postgresql:///db?host=/tmp&port=5433", {"host": "/tmp", "port": "5433", "dbname": "db"}),
    ("postgresql://%2Fvar%2Frun:5433/db", {"host": "/var/run", "port": "5433", "dbname": "db"}),
    ("postgresql:///db?port=5433", {"port": "5433", "dbname": "db"}),
    ("postgresql:///?user=u&password=p%26&dbname=d", {"user": "u", "password": "p&", "dbname": "d"}),
    ("postgresql://a:b@h/d?user=u&password=p", {"user": "u", "password": "p", "host": "h", "dbname": "d"}),
    ("postgresql://h/d?password=p", {"password": "p", "host": "h", "dbname": "d"}),
    ("postgresql://h/db?options=-c%20b%3D5", {"host": "h", "dbname": "db", "options": "-c b=5"}),
    ("postgresql+psycopg://h/db?options=-c+a%3D5", {"host": "h", "dbname": "db", "options": "-c a=5"}),
    ("postgresql://h/db?ssl=true", {"host": "h", "dbname": "db", "sslmode": "require"}),
    ("postgresql://h/a%3Fb%20c", {"host": "h", "dbname": "a?b c"}),
    ("postgresql://h/a%2541%2Fc", {"host": "h", "dbname": "a%41/c"}),
]  # fmt: skip


@pytest.mark.parametrize(("url", "wanted"), FORMS)
def test_sqlalchemy_and_libpq_read_the_same_from_every_form(url: str, wanted: dict[str, str]) -> None:
    assert by_sqlalchemy(sqlalchemy_url(url)) == wanted
    assert by_libpq(libpq_url(url)) == wanted


@pytest.mark.parametrize(("url", "wanted"), FORMS)
def test_what_is_made_of_a_url_can_be_given_again(url: str, wanted: dict[str, str]) -> None:
    made = sqlalchemy_url(url)
    assert sqlalchemy_url(made) == made
    assert by_libpq(libpq_url(made)) == wanted
    assert by_sqlalchemy(sqlalchemy_url(libpq_url(url))) == wanted


@pytest.mark.parametrize(("url", "wanted"), FORMS)
@pytest.mark.parametrize("name", ["other", "a?b%c"])
def test_another_database_of_the_same_server_takes_the_place_of_the_one_named(
    url: str, wanted: dict[str, str], name: str
) -> None:
    other = libpq_url(url, database=name)
    assert by_libpq(other) == by_sqlalchemy(sqlalchemy_url(other)) == wanted | {"dbname": name}


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=12)


@given(words, words, words, st.integers(1, 65535))
def test_any_user_password_and_database_survive(user: str, password: str, database: str, port: int) -> None:
    wanted = {"user": user, "password": password, "host": "h.example", "port": str(port), "dbname": database}
    plain = (
        f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@h.example:{port}/{quote(database, safe='')}"
    )
    rendered = URL.create("postgresql+psycopg", user, password, "h.example", port, database)
    urls = [plain]
    if not set(database) & set("?%"):  # SQLAlchemy before 2.1 loses these itself
        urls.append(rendered.render_as_string(hide_password=False))
    for url in urls:
        assert by_libpq(libpq_url(url)) == wanted
        assert by_sqlalchemy(sqlalchemy_url(url)) == wanted


@pytest.mark.parametrize("url", ["postgresql://h/d?user=u&password=secret", "postgresql://h/d?password=secret"])
def test_sqlalchemy_shows_no_password_that_came_as_a_parameter(url: str) -> None:
    assert "secret" not in str(make_url(sqlalchemy_url(url)))


def test_a_url_for_asyncpg_is_kept_for_sqlalchemy_and_translated_for_libpq() -> None:
    url = "postgresql+asyncpg://u:p@h/db?ssl=verify-full&prepared_statement_cache_size=0&timeout=5"
    assert sqlalchemy_url(url) == url
    wanted = {"user": "u", "password": "p", "host": "h", "dbname": "db", "sslmode": "verify-full"}
    assert by_libpq(libpq_url(url)) == wanted
    assert by_sqlalchemy(sqlalchemy_url(url.replace("+asyncpg", ""))) == wanted


@pytest.mark.parametrize("convert", [sqlalchemy_url, libpq_url])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is empty"),
        ("secret", "no scheme"),
        ("host=h dbname=d password=secret", "no scheme"),
        ("u:secret@h/db", "no scheme"),
        ("mysql://u:secret@h/db", "begins with mysql://"),
        ("postgresql+psycopg2://u:secret@h/db", r"begins with postgresql\+psycopg2://"),
        ("sqlite:///x", "begins with sqlite://"),
        ("my secret://x", "no scheme"),
        ("postgresql://u:secret/x@h/db", "port"),
        ("postgresql://u:secret@h:port/db", "port"),
        ("postgresql://u:secret@h:0/db", "port"),
        ("postgresql://u:secret@h:65536/db", "port"),
        ("postgresql://u:secret@h:²/db", "port"),
        ("postgresql://u:secret@[::1/db", "IPv6"),
        ("postgresql://u:secret@h1,h2/db?port=1,2,3", "number of ports"),
        (5, "not int"),
        (None, "not NoneType"),
        (b"postgresql://u:secret@h/db", "not bytes"),
        (make_url("postgresql://u:secret@h/db"), "render_as_string"),
    ],
)
def test_another_url_is_refused_without_showing_its_password(convert: Any, url: Any, says: str) -> None:
    with pytest.raises(AkadzeError, match=says) as caught:
        convert(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:secret@h/db", "postgresql://u:***@h/db"),
        ("no 'postgresql+psycopg://u:secret@h:5432/db', sorry", "no 'postgresql+psycopg://u:***@h:5432/db', sorry"),
        ("redis://:secret@h", "redis://:***@h"),
        ("amqp://u:12345@h and postgres://v:secret@i", "amqp://u:***@h and postgres://v:***@i"),
        ("postgresql://u@tenant:secret@h/db", "postgresql://u@tenant:***@h/db"),
        ("postgresql://u:s@ecret#x/y@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:my secret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:se'cret@h/db", "postgresql://u:***@h/db"),
        ('{"url":"postgresql://u:secret@h/d","mail":"a@b.c"}', '{"url":"postgresql://u:***@h/d","mail":"a@b.c"}'),
        ("host=h password=secret user=u", "host=h password=*** user=u"),
        ("host=h password='my se\\'cret' user=u", "host=h password=*** user=u"),
        ("host=h password = secret", "host=h password = ***"),
        ("PGPASSWORD=secret psql", "PGPASSWORD=*** psql"),
        ("postgresql:///d?password=secret&host=h", "postgresql:///d?password=***&host=h"),
        ("{'user': 'u', 'password': 'secret'}", "{'user': 'u', 'password': ***}"),
        ("alter role u password 'secret' login", "alter role u password *** login"),
    ],
)  # fmt: skip
def test_passwords_are_cut_out(text: str, shown: str) -> None:
    assert without_password(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "", "žluťoučký 🐎", "http://h:8080/x?mail=a@b.c", "http://h:8080", "see http://x: mail me@x", "http://[::1]:80/a@b",
        "postgresql://u@h/db", 'password authentication failed for user "x"', "a@b:c@d", "the password: must be long",
        "at 12:30 a@b", "pass url.render_as_string(hide_password=False)",
        "https://h/a:b", "no passwords here, see https://h:443, or a@b",
    ],
)  # fmt: skip
def test_other_text_is_left_alone(text: str) -> None:
    assert without_password(text) == text


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=5, max_size=30))
def test_a_password_of_any_characters_is_cut_out_of_a_url(secret: str) -> None:
    shown = without_password(f"failed: postgresql://u:{quote(secret, safe='')}@h.example:5432/db (twice)")
    assert shown == "failed: postgresql://u:***@h.example:5432/db (twice)"


def test_a_url_with_a_byte_that_is_no_utf_8_is_refused_in_words() -> None:
    # Python gives such a byte of a command's argument as a lone surrogate.
    with pytest.raises(AkadzeError, match="holds a byte that is no UTF-8") as caught:
        libpq_url("postgresql://u:secret@127.0.0.1/\udcff")
    assert "secret" not in str(caught.value)
