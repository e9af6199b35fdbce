"""Contract, section 1: when the engines of an app are made, and of which URL. Nothing connects here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from akadze import Akadze, AkadzeError


def test_a_url_that_is_no_url_of_postgresql_is_refused_when_the_app_is_made() -> None:
    with pytest.raises(AkadzeError, match="mysql"):
        Akadze(database_url="mysql://localhost/shop")


@pytest.mark.parametrize("given", [7, b"postgresql://localhost/shop"])
def test_what_is_neither_text_nor_a_function_is_refused_when_the_app_is_made(given: Any) -> None:
    with pytest.raises(AkadzeError, match=f"must be a str, not {type(given).__name__}"):
        Akadze(database_url=given)


def test_a_function_is_called_once_and_not_before_an_engine_is_asked_for() -> None:
    calls = []

    def database_url() -> str:
        calls.append(1)
        return "postgresql://localhost/shop"

    app = Akadze(database_url=database_url)
    assert calls == []
    assert app.engine.url.database == "shop"
    assert app.sync_engine.url.database == "shop"
    assert app.engine is app.engine
    assert app.sync_engine is app.sync_engine
    assert calls == [1]


def test_code_that_is_async_alone_has_no_blocking_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(url: str, **options: Any) -> Any:
        made.append(url)
        return create_engine(url, **options)

    monkeypatch.setattr("akadze.app.create_engine", make)
    app = Akadze(database_url="postgresql://localhost/shop")
    app.register(lambda: None, name="t").using(session=AsyncSession(app.engine))
    assert made == []
    assert app.sync_engine is app.sync_engine
    assert made == ["postgresql+psycopg://localhost/shop"]


@pytest.mark.parametrize("given", ["database_url", "engine"])
def test_the_blocking_engine_beside_asyncpg_is_psycopg_s_and_of_the_same_database(given: str) -> None:
    url = "postgresql+asyncpg://user:secret@host:5433/shop?ssl=require"
    app = Akadze(database_url=url) if given == "database_url" else Akadze(engine=create_async_engine(url))
    assert (app.engine.dialect.driver, app.sync_engine.dialect.driver) == ("asyncpg", "psycopg")
    _, options = app.sync_engine.dialect.create_connect_args(app.sync_engine.url)
    options.pop("context", None)
    assert options == {
        "host": "host", "port": 5433, "user": "user", "password": "secret", "dbname": "shop", "sslmode": "require",
    }  # fmt: skip


def test_the_blocking_engine_alone_finds_the_url_of_a_function() -> None:
    app = Akadze(database_url=lambda: "postgresql://user:secret@localhost/shop", pool_size=3)
    assert app.sync_engine.url.password == "secret"
    assert app.sync_engine.pool.size() == 3  # type: ignore[attr-defined]


def test_threads_that_ask_at_once_get_the_same_engines() -> None:
    app = Akadze(database_url=lambda: "postgresql://localhost/shop")
    together = Barrier(8)

    def ask(number: int) -> tuple[int, int]:
        together.wait()
        return (id(app.engine), id(app.sync_engine)) if number % 2 else (id(app.sync_engine), id(app.engine))[::-1]

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1


@pytest.mark.parametrize("given", ["sqlite:///shop", None])
def test_a_function_that_returns_no_url_of_postgresql_is_refused_when_an_engine_is_asked_for(given: Any) -> None:
    app = Akadze(database_url=lambda: given)
    with pytest.raises(AkadzeError, match="database URL"):
        _ = app.sync_engine
    with pytest.raises(AkadzeError, match="database URL"):
        _ = app.engine


async def test_an_app_whose_engines_nobody_asked_for_is_closed_without_making_them(anyio_backend: str) -> None:
    def database_url() -> str:
        raise AssertionError("called")

    app = Akadze(database_url=database_url)
    app.close()
    await app.aclose()
