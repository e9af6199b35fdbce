"""Contract, sections 2, 5, 12, 13 and 14: the tests of the Django project beside this file, on each driver."""

from __future__ import annotations

import json
import re
from typing import Any

import django
import pytest

from tests.database import create_database
from tests.families import FULL, few
from tests.frameworks.django.conftest import PROJECT, Manage

MODULES = sorted(path.stem for path in (PROJECT / "shop" / "tests").glob("tests_*.py"))
ON_TASKS = [module for module in MODULES if module.startswith("tests_tasks")]
#: What takes long runs beside the others.
LONG = ["tests_worker"]
GROUPS = {"worker": LONG, "others": [module for module in MODULES if module not in {*LONG, *ON_TASKS}]}

#: What has to do with the driver of Django's connection.
ON_DRIVERS = ["tests_enqueue", "tests_models"]

DRIVERS = {
    "psycopg with server-side binding": {"SHOP_OPTIONS": json.dumps({"server_side_binding": True})},
    "psycopg with a pool": {"SHOP_OPTIONS": json.dumps({"pool": {"min_size": 1, "max_size": 4}})},
    "psycopg2": {"SHOP_PSYCOPG2": "1"},
}


def run(manage: Manage, modules: list[str], **options: Any) -> None:
    """Run them, and make sure that something was run."""
    printed = manage("test", *[f"shop.tests.{module}" for module in modules], "--noinput", **options)
    ran = re.search(r"^Ran (\d+) tests? in", printed, re.MULTILINE)
    assert ran is not None, printed
    assert int(ran[1]) > 0, printed


@pytest.mark.parametrize("group", few(GROUPS, kept=["others"]))
def test_the_tests_of_the_project_pass(manage: Manage, group: str) -> None:
    run(manage, GROUPS[group])


@pytest.mark.parametrize("module", ON_TASKS)
def test_those_on_djangos_own_tasks_pass(manage: Manage, module: str) -> None:
    if django.VERSION < (6, 0):
        pytest.skip(f"django.tasks came with Django 6.0, and this is {django.get_version()}")
    run(manage, [module])


@FULL
@pytest.mark.parametrize("driver", few(DRIVERS, kept=["psycopg2"]))
def test_they_pass_on_each_driver_and_option_of_djangos_connection(manage: Manage, driver: str) -> None:
    run(manage, ON_DRIVERS, environment=DRIVERS[driver])


def test_wrong_use_of_a_command_ends_with_2_and_a_line(manage: Manage) -> None:
    printed = manage("akadze_worker", "--slots", "0", code=2)
    assert printed == "CommandError: slots is 0: it must be a whole number from 1 to 10000\n"
    printed = manage("akadze_worker", code=2, environment={"AKADZE_LISTEN_URL": "postgresql://ada:secret@db:port/app"})
    assert printed.startswith("CommandError: AKADZE_LISTEN_URL cannot be used: the port in the database URL is not a")
    assert "secret" not in printed
    assert manage("akadze_migrate", "--database", "notes", code=2).startswith("CommandError: DATABASES['notes']")


@FULL
@pytest.mark.parametrize("command", ["akadze_worker", "akadze_jobs list"])
def test_a_command_that_finds_no_tables_names_djangos_own_migrate(
    manage: Manage, server_url: str, database_name: str, command: str
) -> None:
    create_database(server_url, database_name)
    assert "run `manage.py migrate` on it first" in manage(*command.split(), code=1)
