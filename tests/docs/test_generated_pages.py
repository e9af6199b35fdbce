"""The scripts that write pages: they tell a page that differs, and write it anew."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.families import few


@pytest.mark.parametrize(
    ("name", "there", "wrong"),
    few(
        [("api", "slots: int = 1", "slots: int = 2"), ("cli", "--slots", "--slot")],
        kept=[("cli", "--slots", "--slot")],
    ),
)
def test_the_check_fails_when_the_page_differs(tmp_path: Path, name: str, there: str, wrong: str) -> None:
    for folder in ("scripts", "docs"):
        (tmp_path / folder).mkdir()
    script = f"make_{name}_page.py"
    for needed in (script, "generated.py"):
        shutil.copy(ROOT / "scripts" / needed, tmp_path / "scripts")
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    written = tmp_path / "docs" / f"{name}.md"
    written.write_text(page.replace(there, wrong), "utf-8")
    copy = [sys.executable, tmp_path / "scripts" / script]
    checked = subprocess.run([*copy, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert there in checked.stdout
    assert f"run scripts/{script}" in checked.stdout
    subprocess.run(copy, check=True)
    assert written.read_text("utf-8") == page
