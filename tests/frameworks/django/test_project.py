"""The tests of the project beside this file, which are Django's: its modules, and the drivers that Django may have."""

from __future__ import annotations

import json
import re

import django
import pytest

from tests.database import create_database
from tests.frameworks.django.conftest import PROJECT, Manage

MODULES = sorted(path.stem for path in (PROJECT / "shop" / "tests").glob("tests_*.py"))

#: What has to do with the driver of Django's connection.
ON_DRIVERS = ["tests_enqueue", "tests_models"]

DRIVERS = {
    "psycopg with server-side binding": {"SHOP_OPTIONS": json.dumps({"server_side_binding": True})},
    "psycopg with a pool": {"SHOP_OPTIONS": json.dumps({"pool": {"min_size": 1, "max_size": 4}})},
    "psycopg2": {"SHOP_PSYCOPG2": "1"},
}


def check(printed: str) -> None:
    """Make sure that it ran something."""
    ran = re.search(r"^Ran (\d+) tests? in", printed, re.MULTILINE)
    assert ran is not None, printed
    assert int(ran[1]) > 0, printed


@pytest.mark.parametrize("module", MODULES)
def test_the_tests_of_the_project_pass(manage: Manage, module: str) -> None:
    if module.startswith("tests_tasks") and django.VERSION < (6, 0):
        pytest.skip(f"django.tasks came with Django 6.0, and this is {django.get_version()}")
    check(manage("test", f"shop.tests.{module}", "--noinput"))


@pytest.mark.parametrize("driver", DRIVERS)
def test_they_pass_on_each_driver_and_option_of_djangos_connection(manage: Manage, driver: str) -> None:
    modules = [f"shop.tests.{module}" for module in ON_DRIVERS]
    check(manage("test", *modules, "--noinput", environment=DRIVERS[driver]))


def test_wrong_use_of_a_command_ends_with_2_and_a_line(manage: Manage) -> None:
    printed = manage("akadze_worker", "--slots", "0", code=2)
    assert printed == "CommandError: slots is 0: it must be a whole number from 1 to 10000\n"
    assert manage("akadze_migrate", "--database", "notes", code=2).startswith("CommandError: DATABASES['notes']")


@pytest.mark.parametrize("command", ["akadze_worker", "akadze_jobs list"])
def test_a_command_that_finds_no_tables_names_djangos_own_migrate(
    manage: Manage, server_url: str, database_name: str, command: str
) -> None:
    create_database(server_url, database_name)
    assert "run `manage.py migrate` on it first" in manage(*command.split(), code=1)
