"""Contract, section 14: the help of the commands, and the page that is made of it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from akadze import Worker
from akadze.cli.commands import app
from tests.cli.conftest import Cli
from tests.families import few

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_cli_page.py"


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = getattr(command, "commands", None)
    if not inner:
        return [path]
    return [leaf for name, child in inner.items() for leaf in leaves(child, (*path, name))]


COMMANDS = leaves(get_command(app))


def make_page(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


TERMINAL = {"COLUMNS": "200", "FORCE_COLOR": "1", "TERM": "xterm-256color"}


@pytest.mark.parametrize("environment", few([{}, TERMINAL], kept=[TERMINAL]))
def test_the_page_is_current_whatever_the_terminal(environment: dict[str, str]) -> None:
    done = make_page("--check", **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_are_the_commands_that_are_promised() -> None:
    assert {" ".join(path) for path in COMMANDS} >= {
        "demo",
        "jobs cancel",
        "jobs list",
        "jobs requeue",
        "jobs show",
        "limits clear",
        "limits list",
        "limits set",
        "metrics",
        "migrate",
        "queues list",
        "queues pause",
        "queues resume",
        "worker",
        "workers list",
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_command_and_each_option_has_its_help(cli: Cli, path: tuple[str, ...]) -> None:
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    assert command.help
    assert [option.name for option in command.params if not option.help] == []
    result = cli(*path, "--help", url=None)
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: akadze {' '.join(path)} ")


@pytest.mark.parametrize("arguments", [[], ["jobs"], ["queues"], ["limits"], ["workers"]])
def test_a_group_without_a_command_shows_its_help(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments, url=None)
    assert "Commands:" in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_worker_has_an_option_for_each_of_the_worker_class_with_its_default(cli: Cli) -> None:
    shown = " ".join(cli("worker", "--help").stdout.split())
    options = {name: option.default for name, option in inspect.signature(Worker).parameters.items() if name != "app"}
    told = {"queues": "--queue NAME", "notify": "--no-notify", "fair": "--fair"}
    for name, default in options.items():
        assert told.get(name, f"--{name.replace('_', '-')}") in shown
        if isinstance(default, timedelta):
            text = shown.split(f"--{name.replace('_', '-')} DURATION", 1)[1]
            assert text.split("[default: ", 1)[1].startswith(f"{default.total_seconds():g}s]")
    assert options["slots"] == 1
    assert "Jobs at once, for each queue. [default: 1]" in shown
    assert (options["fair"], options["notify"], options["queues"]) == (False, True, None)
