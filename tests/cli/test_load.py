"""Contract, section 14: APP: the module and the attribute of it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

APP = "from akadze import Akadze\napp = Akadze(database_url='postgresql://ada:secret@127.0.0.1:1/app')\n"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with modules, which is the current directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    (tmp_path / "good.py").write_text(f"{APP}other = Akadze(database_url='postgresql:///b')\nnumber = 7\n")
    (tmp_path / "bare.py").write_text("app = None\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text("")
    (tmp_path / "folder" / "broken.py").write_text("def deep():\n    import nosuch_inside\n\n\ndeep()\n")
    (tmp_path / "folder" / "syntax.py").write_text("def (:\n")
    (tmp_path / "folder" / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "folder" / "telling.py").write_text("raise ValueError('postgresql://ada:secret@db/app')\n")
    yield
    # Only these: a second import of SQLAlchemy's dialects would register their functions again.
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("good", "APP is 'good': write it as module:attribute, for example project.tasks:app"),
        (":app", "APP is ':app': write it as module:attribute"),
        ("good:", "APP is 'good:': write it as module:attribute"),
        ("good:x:y", "APP is 'good:x:y', and 'x:y' is no attribute's name"),
        ("good.py:app", "APP is 'good.py:app': write dots instead of slashes, and no .py"),
        ("./good:app", "APP is './good:app': write dots instead of slashes, and no .py"),
        ("folder/broken:app", "APP is 'folder/broken:app': write dots instead of slashes, and no .py"),
        ("..good:app", "'..good' is no module's name: write it as module:attribute"),
        ("nosuch:app", "there is no module 'nosuch': it is looked for in {here} and in the installed packages"),
        ("folder.nosuch:app", "there is no module 'folder.nosuch': it is looked for in {here}"),
        ("nosuch.a.b:app", "there is no module 'nosuch.a.b' (there is no 'nosuch'): it is looked for in {here}"),
        ("good.app:app", "there is no module 'good.app': it is looked for in {here}"),
        ("good:nosuch", "module 'good' has no 'nosuch': its apps are good:app, good:other"),
        ("good:number", "good:number is of type int, not an Akadze app: its apps are good:app, good:other"),
        ("bare:app", "bare:app is of type NoneType, not an Akadze app: the module has no Akadze app, make one there"),
    ],
)
def test_an_app_that_is_not_there_is_wrong_use_in_one_line(cli: Cli, tmp_path: Path, given: str, said: str) -> None:
    result = cli("worker", given, url=None)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert said.format(here=tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_error_inside_the_module_shows_its_own_traceback(cli: Cli, tmp_path: Path) -> None:
    result = cli("worker", "folder.broken:app")
    assert (result.code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{tmp_path / "folder" / "broken.py"}", line 5, in <module>'
    assert lines[-1] == "ModuleNotFoundError: No module named 'nosuch_inside'"
    assert "importlib" not in result.stderr
    assert "akadze" not in result.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("app = Akadze(database_url='mysql://ada:secret@db/a')", "line 3: the database URL begins with mysql://"),
        ("app = Akadze(database_url='')", "line 3: "),
        (
            "app = Akadze(database_url='postgresql:///a')\n\n@app.task\ndef f(): ...",
            "line 5: a task's name must be a str",
        ),
    ],
)
def test_wrong_use_of_akadze_inside_the_module_is_told_in_one_line(
    cli: Cli, tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "wrong.py").write_text(f"from akadze import Akadze\n\n{source}\n")
    result = cli("worker", "wrong:app")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {tmp_path / 'wrong.py'}, {said}")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


def test_an_akadze_error_that_the_module_raises_itself_is_shown_with_its_traceback(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own_helper.py").write_text(
        "from akadze import AkadzeError\n\ndef check():\n    raise AkadzeError('no shop is named')\n"
    )
    (tmp_path / "own.py").write_text("import own_helper\n\nown_helper.check()\n")
    result = cli("worker", "own:app")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "akadze.AkadzeError: no shop is named"
    assert "own.py" in result.stderr
    assert "own_helper.py" in result.stderr


@pytest.mark.parametrize(
    ("module", "last"),
    [
        ("syntax", "SyntaxError: "),
        ("leaving", "SystemExit: 0"),
        ("telling", "ValueError: postgresql://ada:***@db/app"),
    ],
)
def test_any_error_inside_the_module_is_shown_without_a_password(cli: Cli, module: str, last: str) -> None:
    result = cli("worker", f"folder.{module}:app")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(last)
    assert f"{module}.py" in result.stderr
    assert "secret" not in result.stderr


def test_the_module_of_the_current_directory_wins_over_an_installed_one(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "twin.py").write_text("app = 7\n")
    (tmp_path / "twin.py").write_text("app = 'here'\n")
    sys.path.insert(0, str(other))
    assert "twin:app is of type str" in cli("worker", "twin:app").stderr


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["one", "two"])
def test_a_current_directory_that_has_been_removed_is_told_in_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[str]
) -> None:
    (tmp_path / "release").mkdir()
    monkeypatch.chdir(tmp_path / "release")
    (tmp_path / "release").rmdir()
    result = cli("worker", "good:app", *processes)
    assert result.code == 1
    assert result.stderr == "error: the current directory has been removed: start the worker in one that is there\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slots", "0"], "error: slots is 0: it must be a whole number from 1 to 10000"),
        (["--slots", "x"], "--slots"),
        (["--queue", ""], "error: a queue's name is empty"),
        (["--heartbeat-ttl", "1s"], "error: heartbeat_ttl is 0:00:01 and heartbeat_interval 0:00:05"),
        (["--poll-interval", "0"], "error: poll_interval is 0:00:00"),
        (["--shutdown-timeout", "soon"], "'soon' is no duration: give seconds, or a number with ms, s, m, h or d"),
        (["--log-level", "loud"], "'loud' is no level: give one of debug, info, warning, error, critical"),
        (["--database-url", "mysql://ada:secret@db/app"], "error: the database URL begins with mysql://"),
        (["--database-url", "postgresql://db/app?nosuch=1"], 'error: invalid URI query parameter: "nosuch"'),
    ],
)
def test_a_malformed_option_of_worker_is_wrong_use(cli: Cli, options: list[str], said: str) -> None:
    result = cli("worker", "good:app", *options)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["one", "two"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("garbage", "the database URL has no scheme that akadze knows"),
        ("mysql://ada:secret@db/app", "the database URL begins with mysql://"),
        ("postgresql://ada:secret@db:port/app", "the port in the database URL is not a number"),
        ("postgresql://ada:secret@db/app?nosuch=1", 'invalid URI query parameter: "nosuch"'),
    ],
)
def test_a_malformed_url_to_listen_on_is_wrong_use(cli: Cli, url: str, said: str, processes: list[str]) -> None:
    result = cli("worker", "good:app", *processes, environment={"AKADZE_LISTEN_URL": url})
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: AKADZE_LISTEN_URL cannot be used: {said}")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


def test_a_malformed_url_to_listen_on_is_nobodys_where_nothing_listens(cli: Cli) -> None:
    result = cli("worker", "good:app", "--no-notify", "--slots", "0", environment={"AKADZE_LISTEN_URL": "garbage"})
    assert (result.code, result.stderr[:16]) == (2, "error: slots is ")


ENGINE = """
import os
from akadze import Akadze
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

URL = "postgresql+psycopg://ada:secret@db/settings"
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("app = Akadze(engine=create_async_engine(URL))", "the app was made with an engine of its module's own"),
        (
            "app = Akadze(database_url=URL, sync_engine=create_engine(URL))",
            "the app was made with an engine of its module's own",
        ),
        (
            "app = Akadze(database_url=URL)\nsessions = async_sessionmaker(app.engine)",
            "the app's engine was asked for while its module was imported",
        ),
        (
            "app = Akadze(database_url=lambda: URL)\nengine = app.sync_engine",
            "the app's engine was asked for while its module was imported",
        ),
    ],
)
def test_an_app_whose_engine_is_in_use_elsewhere_is_not_taken_to_another_database(
    cli: Cli, tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "made.py").write_text(f"{ENGINE}{source}\n")
    result = cli("worker", "made:app", "--database-url", "postgresql://ada:secret@db/option")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {said}")
    assert "AKADZE_DATABASE_URL" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    "source",
    [
        'app = Akadze(engine=create_async_engine(os.environ["AKADZE_DATABASE_URL"]))',
        'app = Akadze(database_url=os.environ["AKADZE_DATABASE_URL"])\nengine = app.sync_engine',
        "app = Akadze(database_url=URL)",
        "app = Akadze(database_url=lambda: 1 / 0)",
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_the_option_names_the_database_of_any_other_app(cli: Cli, tmp_path: Path, source: str, before: bool) -> None:
    """Modules that read the variable get it as well; the app itself need not."""
    (tmp_path / "made.py").write_text(f"{ENGINE}{source}\n")
    option = ("--database-url", "postgresql+psycopg://db/option")
    result = cli(
        *(option if before else ()), "worker", "made:app", "--slots", "0", *(() if before else option), url=None
    )
    # What is told is an option that is looked at when the app has been loaded.
    assert (result.code, result.stderr[:16]) == (2, "error: slots is ")
    assert sys.modules["made"].app.engine.url.database == "option"
    assert sys.modules["made"].app.sync_engine.url.database == "option"
