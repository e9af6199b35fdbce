"""Contract, section 12: where the plugin's database is, and which app is on it."""

from __future__ import annotations

import sys

import psycopg
import pytest

from tests.families import FULL
from tests.plugin.conftest import Run


def test_a_database_is_given_and_named_to_the_code_under_test(run: Run) -> None:
    run(
        """
        import os
        import psycopg

        def test_it(akadze_database_url):
            assert os.environ["AKADZE_DATABASE_URL"] == akadze_database_url
            with psycopg.connect(akadze_database_url) as connection:
                # Other tests may have left rows: only akadze_jobs empties the tables.
                assert connection.execute("select to_regclass('akadze.jobs') is not null").fetchone() == (True,)
        """
    ).assert_outcomes(passed=1)


def test_without_a_given_one_a_server_is_started_and_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AKADZE_DATABASE_URL")
    result = run(
        """
        import os
        from shop import app, pack

        def test_it(akadze_jobs, akadze_database_url):
            with app.sync_engine.begin() as connection:
                pack.using(session=connection).enqueue(order=1)
            akadze_jobs.drain()
            print("database", akadze_database_url)

        def test_the_environment(akadze_app):
            assert "akadze_test" in os.environ["AKADZE_DATABASE_URL"]
        """,
        "-s",
        apart=True,
    )
    result.assert_outcomes(passed=2)
    [url] = [line.split("database ")[1] for line in result.outlines if "database postgresql" in line]
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


@FULL
def test_each_process_of_several_has_a_database_for_itself(run: Run) -> None:
    result = run(
        """
        import pytest
        from shop import app, pack

        @pytest.mark.parametrize("number", range(8))
        def test_it(akadze_jobs, akadze_database_url, worker_id, number):
            assert f"akadze_plugin_test_{worker_id}" in akadze_database_url
            with app.sync_engine.begin() as connection:
                pack.using(session=connection).enqueue(order=number)
            assert [job.args["order"] for job in akadze_jobs.enqueued()] == [number]
        """,
        "-p",
        "xdist",
        "-n",
        "2",
        apart=True,
    )
    result.assert_outcomes(passed=8)


def test_a_database_that_may_hold_more_than_tests_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKADZE_DATABASE_URL", "postgresql://someone:secret@127.0.0.1:1/latest")
    result = run("def test_it(akadze_database_url): ...")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*AkadzeError: the database is named 'latest'*"])
    result.stdout.no_fnmatch_line("*secret*")


def test_an_app_of_the_users_own_is_kept_from_other_databases(run: Run, server_url: str) -> None:
    result = run(
        f"""
        import pytest
        from akadze import Akadze

        @pytest.fixture
        def akadze_app():
            app = Akadze(database_url={server_url!r})
            yield app
            app.close()

        def test_it(akadze_jobs): ...
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*AkadzeError: the database is named *"])


def test_an_app_of_the_users_own_takes_the_place_of_the_named_one(run: Run) -> None:
    run(
        """
        import pytest
        from akadze import Akadze

        @pytest.fixture
        def akadze_app(akadze_database_url):
            app = Akadze(database_url=akadze_database_url)
            app.register(lambda: None, name="only")
            yield app
            app.close()

        def test_it(akadze_jobs, akadze_app):
            assert list(akadze_jobs.app.tasks) == ["only"]
            assert akadze_jobs.app is akadze_app
            with akadze_app.sync_engine.begin() as connection:
                akadze_app.tasks["only"].using(session=connection).enqueue()
            akadze_jobs.drain()
        """,
        "-o",
        "akadze_app=",
    ).assert_outcomes(passed=1)


def test_an_app_whose_database_is_not_migrated_is_refused(run: Run, project_database_url: str) -> None:
    with psycopg.connect(project_database_url, autocommit=True) as connection:
        connection.execute("drop schema if exists akadze cascade")
    result = run(
        f"""
        import pytest
        from akadze import Akadze

        @pytest.fixture
        def akadze_app():
            app = Akadze(database_url={project_database_url!r})
            yield app
            app.close()

        def test_it(akadze_jobs): ...
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*AkadzeError: the database lacks the migration*akadze migrate*"])


def test_an_app_on_another_database_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(other="from akadze import Akadze\napp = Akadze(database_url='postgresql://127.0.0.1:1/live')")
    result = run("def test_it(akadze_app): ...", "-o", "akadze_app=other:app")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*AkadzeError: the app other:app is on the database 'live'*'akadze_plugin_test'*"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "*the ini option akadze_app is not set*module:attribute*"),
        ("nosuch:app", "*the ini option akadze_app is 'nosuch:app', and there is no module 'nosuch'*"),
        ("nosuch.a:app", "*the ini option akadze_app is 'nosuch.a:app', and there is no module 'nosuch'*"),
        ("shop:ap", "*the ini option akadze_app is 'shop:ap', and module 'shop' has no 'ap'*"),
        ("shop", "*the ini option akadze_app is 'shop'*module:attribute*"),
        ("shop:ran", "*shop:ran is of type list*"),
    ],
)
def test_what_names_no_app_is_refused(run: Run, name: str, message: str) -> None:
    result = run("def test_it(akadze_app): ...", "-o", f"akadze_app={name}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_a_project_that_does_not_use_the_plugin_does_not_pay_for_it(run: Run) -> None:
    result = run(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.startswith(("akadze", "sqlalchemy", "psycopg", "pydantic"))}
            assert loaded <= {"akadze", "akadze.pytest_plugin"}
            assert "akadze.pytest_plugin" in loaded
        """,
        apart=True,
    )
    result.assert_outcomes(passed=1)


def test_the_fixtures_are_listed_with_what_they_do(run: Run) -> None:
    result = run("", "--fixtures", "-v")
    for name in ("akadze_database_url", "akadze_app", "akadze_jobs", "akadze_async_jobs"):
        result.stdout.fnmatch_lines([f"{name}*akadze/pytest_plugin.py*", "    *"])


def test_the_plugin_of_this_run_is_the_installed_one(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.get_plugin("akadze") is sys.modules["akadze.pytest_plugin"]
