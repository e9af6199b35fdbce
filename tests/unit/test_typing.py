"""Contract, section 1: what a type checker tells users: nothing about right code, and each mistake on its own line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RIGHT = ROOT / "tests" / "typing" / "user_code.py"
WRONG = ROOT / "tests" / "typing_rejected" / "wrong_code.py"

_MARK = re.compile(r"  # E: ([a-z, -]+)$")
_ERROR = re.compile(r"^.*?wrong_code\.py:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)


def test_right_code_passes() -> None:
    run = mypy(RIGHT)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)


def test_each_mistake_is_refused_on_its_line_and_nothing_else_is() -> None:
    marks = {
        number: sorted(mark[1].split(", "))
        for number, line in enumerate(WRONG.read_text("utf-8").splitlines(), 1)
        if (mark := _MARK.search(line)) is not None
    }
    run = mypy(WRONG)
    found: dict[int, list[str]] = {}
    for number, code in _ERROR.findall(run.stdout):
        found[int(number)] = sorted([*found.get(int(number), []), code])
    assert run.returncode == 1, run.stderr
    assert found == marks
    assert len(marks) > 50


def test_the_package_says_that_it_has_types() -> None:
    assert (ROOT / "akadze" / "py.typed").exists()
