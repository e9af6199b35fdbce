"""Contract, section 14: `akadze_worker --reload`, on a copy of the project whose code is changed meanwhile."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import psycopg

from akadze import Akadze
from tests.database import create_database
from tests.families import FULL
from tests.frameworks.django.conftest import PROJECT, Manage
from tests.waiting import wait_until


@FULL
def test_a_change_of_the_code_starts_the_worker_again_with_the_new_code(
    manage: Manage, server_url: str, database_name: str, tmp_path: Path
) -> None:
    project = shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    url = create_database(server_url, database_name)
    manage("migrate", "--verbosity", "0")
    note = Akadze(database_url=url).register(lambda text: None, name="note")
    with psycopg.connect(url, autocommit=True) as connection:

        def notes() -> list[str]:
            return [text for (text,) in connection.execute("select text from shop_note order by id")]

        def workers() -> list[str]:
            return [str(worker) for (worker,) in connection.execute("select id from akadze.workers")]

        started = manage.start(
            "akadze_worker",
            "--reload",
            "--poll-interval",
            "50ms",
            log=tmp_path / "log",
            project=project,
            SHOP_DEBUG="1",
        )
        note.using(session=connection).enqueue(text="old")
        wait_until(lambda: notes() == ["old"])
        [first] = workers()
        jobs = project / "shop" / "jobs.py"
        jobs.write_text(
            jobs.read_text().replace("Note.objects.create(text=text)", "Note.objects.create(text='new code')", 1)
        )

        def starts_again() -> bool:
            # The reloader compares with what it saw last: a change before its first look is none to it.
            os.utime(jobs)
            with suppress(AssertionError):
                wait_until(lambda: started.log.count("serves queues") > 1, timeout=5)
                return True
            return False

        wait_until(starts_again)
        # It has stopped in order: its row is gone, and not only its process.
        wait_until(lambda: len(workers()) == 1 and workers() != [first])
        note.using(session=connection).enqueue(text="old")
        wait_until(lambda: notes() == ["old", "new code"])
