"""The page of the API: it is made of the docstrings, and has every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

from tests.docs.markdown import ROOT

SCRIPT = ROOT / "scripts" / "make_api_page.py"
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")

#: Modules whose names have headings. Others are told of in pages of their own.
MODULES = [
    "akadze",
    "akadze.context",
    "akadze.contrib.django",
    "akadze.contrib.django.testing",
    "akadze.contrib.fastapi",
    "akadze.errors",
    "akadze.hooks",
    "akadze.job",
    "akadze.metrics",
    "akadze.task",
    "akadze.testing",
]
#: What the page tells in a sentence.
IN_WORDS = {"__version__", "BackoffPolicy", "SyncBoundTask", "WorkerOptions"}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_its_heading(module: str) -> None:
    headings = [heading.rpartition(".") for heading in re.findall(r"^### `([\w.]+)`$", PAGE, re.MULTILINE)]
    told = [getattr(import_module(home), name) for home, _, name in headings]
    public = {name: getattr(import_module(module), name) for name in import_module(module).__all__}
    # By what it is, not by what it is called: two modules may have a name in common.
    assert {name for name, thing in public.items() if not any(thing is one for one in told)} - IN_WORDS == set()


def test_it_is_current() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
