"""The tests empty their database, so they refuse one that does not look like theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.database import guard, with_database


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql://localhost/akadze", "postgresql://localhost/akadze"),
        ("postgres://me:secret@localhost:5432/shop_test", "postgresql://me:secret@localhost:5432/shop_test"),
        ("postgresql+psycopg://me@/my_test?host=/tmp/x", "postgresql://me@/my_test?host=/tmp/x"),
    ],
)
def test_a_database_for_tests_is_taken(url: str, plain: str) -> None:
    assert guard(url) == plain


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/production",
        "postgresql://localhost/akadze_production",
        "postgresql://localhost/test",
        "postgresql://localhost/postgres?application_name=my_test",
        "postgresql://localhost",
        "postgresql://akadze@localhost/",
    ],
)
def test_any_other_database_is_refused(url: str) -> None:
    with pytest.raises(pytest.UsageError, match="AKADZE_DATABASE_URL names the database"):
        guard(url)


def test_the_refusal_shows_no_password() -> None:
    with pytest.raises(pytest.UsageError) as caught:
        guard("postgresql://me:hunter2@localhost/production")
    assert "hunter2" not in str(caught.value)


def test_a_run_against_a_foreign_database_stops_before_any_test() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "AKADZE_DATABASE_URL": "postgresql://localhost/production"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'production'" in run.stderr
    assert "passed" not in run.stdout


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h:1/old?a=b", "postgresql://u:p@h:1/new?a=b"),
        ("postgresql://u@/old?host=/tmp/x", "postgresql://u@/new?host=/tmp/x"),
        ("postgresql://h", "postgresql://h/new"),
        ("postgresql://h?host=/tmp/a", "postgresql://h/new?host=/tmp/a"),
    ],
)
def test_the_url_of_another_database_keeps_all_but_the_name(url: str, expected: str) -> None:
    assert with_database(url, "new") == expected


def test_the_developers_database_is_hidden_from_the_code_under_test() -> None:
    assert "AKADZE_DATABASE_URL" not in os.environ
