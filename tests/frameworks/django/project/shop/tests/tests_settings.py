"""The setting AKADZE, the checks of it, and the URL of a database."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import psycopg
from django.core.checks import run_checks
from django.db import connection
from django.test import SimpleTestCase, TestCase, override_settings
from psycopg.conninfo import conninfo_to_dict

from akadze import Akadze, AkadzeError
from akadze._urls import libpq_url, sqlalchemy_url
from akadze.contrib.django import complete_tx, database_url, get_app, install
from akadze.contrib.django._connections import FreshConnections
from shop import jobs

no_app = "not an app"


def _found(**setting: Any) -> list[tuple[str, str]]:
    with override_settings(**setting):
        return [(message.id, message.msg) for message in run_checks() if str(message.id).startswith("akadze")]


class Checks(SimpleTestCase):
    databases = {"default", "notes"}  # noqa: RUF012 - as Django has it

    def test_the_settings_of_this_project_are_right(self) -> None:
        self.assertEqual(_found(), [])

    def test_a_setting_may_be_left_out(self) -> None:
        self.assertEqual(_found(AKADZE={}), [])

    def test_each_wrong_setting_is_told(self) -> None:
        for setting, number, words in (
            ([], "E001", "a list"),
            ({"APPS": "shop.jobs:app"}, "E001", "'APPS'"),
            ({"APP": "shop.jobs"}, "E001", "module:attribute"),
            ({"APP": jobs.app}, "E001", "module:attribute"),
            ({"DATABASE": None}, "E001", "is None"),
            ({"DATABASE": "other"}, "E002", "'other'"),
            ({"DATABASE": "notes"}, "E002", "sqlite"),
            ({"APP": "shop.job:app"}, "E003", "no module 'shop.job'"),
            ({"APP": "shap.jobs:app"}, "E003", "no module 'shap'"),
            ({"APP": "shop.jobs:application"}, "E003", "is not there"),
            ({"APP": "shop.tests.tests_settings:no_app"}, "E003", "is a str"),
            ({"APP": "shop.tests.broken:app"}, "E003", "ZeroDivisionError"),
            ({"APP": "shop.tests.broken_import:app"}, "E003", "no_such_package"),
        ):
            with self.subTest(setting=setting):
                [(found, message)] = _found(AKADZE=setting)
                self.assertEqual(found, f"akadze.{number}")
                self.assertIn(words, message)


class App(SimpleTestCase):
    def test_the_app_of_the_settings_is_installed_once(self) -> None:
        self.assertIs(get_app(), jobs.app)
        install(get_app())
        self.assertEqual(jobs.app.hooks.around_run.count(FreshConnections), 1)

    def test_without_one_there_is_an_app_of_its_own(self) -> None:
        with override_settings(AKADZE={}):
            app = get_app()
            self.assertIs(get_app(), app)
        self.assertIsNot(app, jobs.app)
        self.assertEqual(app.engine.url.database, connection.settings_dict["NAME"])

    def test_complete_tx_is_refused_outside_a_job(self) -> None:
        with self.assertRaisesMessage(AkadzeError, "outside a job"), complete_tx():
            self.fail("the block ran")


class DatabaseURL(TestCase):
    databases = {"default", "notes"}  # noqa: RUF012 - as Django has it

    def test_an_app_whose_module_was_imported_before_the_test_database_was_made_connects_to_that(self) -> None:
        name = connection.settings_dict["NAME"]
        self.assertEqual(jobs.app.engine.url.database, name)
        with jobs.app.sync_engine.connect() as other:
            self.assertEqual(other.exec_driver_sql("select current_database()").scalar(), name)
        jobs.app.close()

    def test_the_text_is_that_of_then_and_a_call_that_of_now(self) -> None:
        name = connection.settings_dict["NAME"]
        url = database_url()
        self.addCleanup(connection.settings_dict.__setitem__, "NAME", name)
        connection.settings_dict["NAME"] = "other"
        self.assertEqual(conninfo_to_dict(url)["dbname"], name)
        self.assertEqual(conninfo_to_dict(url())["dbname"], "other")
        self.assertEqual(url, str(url))
        for copied in (copy.copy(url), pickle.loads(pickle.dumps(url))):
            self.assertEqual(conninfo_to_dict(copied())["dbname"], "other")

    def test_it_connects(self) -> None:
        with psycopg.connect(libpq_url(database_url("default"))) as other:
            [(name,)] = other.execute("select current_database()").fetchall()
        self.assertEqual(name, connection.settings_dict["NAME"])

    def test_every_part_of_the_settings_arrives(self) -> None:
        plain = {"HOST": "", "PORT": "", "USER": "", "PASSWORD": "", "NAME": "shop", "OPTIONS": {}}
        for changed, expected in (
            ({}, {"dbname": "shop"}),
            (
                {"HOST": "db.example", "PORT": "6432", "USER": "us er@", "PASSWORD": "p@ss/w:rd%? #é"},
                {"host": "db.example", "port": "6432", "user": "us er@", "password": "p@ss/w:rd%? #é"},
            ),
            ({"PORT": 5433}, {"port": "5433"}),
            ({"USER": "u", "PASSWORD": ""}, {"user": "u"}),
            ({"HOST": "/var/run/post gresql"}, {"host": "/var/run/post gresql"}),
            ({"HOST": "::1"}, {"host": "::1"}),
            ({"HOST": "a,b", "PORT": "1,2"}, {"host": "a,b", "port": "1,2"}),
            ({"NAME": "Shop/é ?%"}, {"dbname": "Shop/é ?%"}),
            ({"NAME": "", "OPTIONS": {"service": "shop"}}, {"service": "shop", "dbname": None}),
            (
                {"OPTIONS": {"sslmode": "require", "connect_timeout": 3, "application_name": "a b&c=d"}},
                {"sslmode": "require", "connect_timeout": "3", "application_name": "a b&c=d"},
            ),
            ({"OPTIONS": {"options": "-c lock_timeout=5s"}}, {"options": "-c lock_timeout=5s"}),
            ({"OPTIONS": {"assume_role": "the role"}}, {"options": "-c role=the\\ role"}),
            (
                {"OPTIONS": {"assume_role": "r", "options": "-c jit=off", "keepalives": False}},
                {"options": "-c jit=off -c role=r", "keepalives": "0"},
            ),
            # Django's own options, and what psycopg takes beside the parameters of libpq.
            (
                {"OPTIONS": {"pool": False, "server_side_binding": True, "isolation_level": 2, "prepare_threshold": 0}},
                {"dbname": "shop"},
            ),
        ):
            given = {**plain, **changed}
            with self.subTest(changed=changed):
                kept = {name: connection.settings_dict[name] for name in given}
                connection.settings_dict.update(given)
                try:
                    url = str(database_url())
                finally:
                    connection.settings_dict.update(kept)
                whole = {"dbname": "shop", **expected}
                whole = {name: value for name, value in whole.items() if value is not None}
                self.assertEqual(conninfo_to_dict(url), whole)
                self.assertEqual(conninfo_to_dict(libpq_url(url)), whole)
                self.assertEqual(conninfo_to_dict(libpq_url(sqlalchemy_url(url))), whole)
                Akadze(database_url=url).close()

    def test_a_password_does_not_show_in_the_repr(self) -> None:
        kept = connection.settings_dict["PASSWORD"]
        self.addCleanup(connection.settings_dict.__setitem__, "PASSWORD", kept)
        connection.settings_dict["PASSWORD"] = "secret"
        self.assertIn("secret", database_url())
        self.assertNotIn("secret", repr(database_url()))

    def test_other_databases_and_unknown_aliases_are_refused(self) -> None:
        with self.assertRaisesMessage(AkadzeError, "sqlite"):
            database_url("notes")
        with self.assertRaisesMessage(AkadzeError, "'default', 'notes'"):
            database_url("nowhere")
