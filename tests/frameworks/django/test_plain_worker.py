"""Contract, sections 5 and 14: `akadze worker`, given the app of a Django project."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from tests.database import create_database
from tests.frameworks.django.conftest import PROJECT, Manage
from tests.processes import Process
from tests.waiting import wait_until

MODULE = """
import os

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
django.setup()

from akadze.contrib.django import get_app

app = get_app()
"""


def test_a_module_that_sets_django_up_gives_akadze_worker_its_app(
    manage: Manage, server_url: str, database_name: str, tmp_path: Path
) -> None:
    url = create_database(server_url, database_name)
    manage("migrate", "--verbosity", "0")
    (tmp_path / "entry.py").write_text(MODULE)
    environment = {**manage.environment, "PYTHONPATH": os.fspath(PROJECT)}
    worker = Process(["worker", "entry:app"], directory=tmp_path, name="worker", environment=environment)
    try:
        worker.wait_for_output("serves queues")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("insert into akadze.jobs (task, args) values ('finish', '{\"text\": \"note\"}')")
            wait_until(lambda: connection.execute("select state from akadze.jobs").fetchone() == ("succeeded",))
            # What the task wrote in its complete_tx block committed with its success.
            together = connection.execute("select n.text, n.xmin = j.xmin from shop_note n, akadze.jobs j").fetchall()
            assert together == [("note", True)]
        worker.terminate()
        assert worker.wait() == 0
    finally:
        worker.end()
