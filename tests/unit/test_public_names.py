"""Contract, section 1: the names of `akadze`, which are imported at their first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import akadze


def declared() -> dict[str, str]:
    """The names that type checkers see, each with the module that it comes from."""
    tree = ast.parse(Path(akadze.__file__).read_text("utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__")
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_what_is_imported_at_the_first_use_is_what_type_checkers_see() -> None:
    assert {name: home for home, names in akadze._HOMES.items() for name in names} == declared()
    assert sorted({*declared(), "__version__"}) == sorted(akadze.__all__)


@pytest.mark.parametrize("name", akadze.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(akadze, name) is not None
    assert name in dir(akadze)


def test_public_modules_can_be_reached_from_the_package() -> None:
    code = "import akadze; print(akadze.errors.AkadzeError is akadze.AkadzeError, akadze.testing.drain.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True drain\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'akadze' has no attribute 'nosuch'"):
        akadze.nosuch  # noqa: B018 - the access is the test


def test_the_start_of_the_command_line_imports_nothing_slow() -> None:
    code = (
        "import sys; import akadze.cli; "
        "print([name for name in ('asyncio', 'psycopg', 'pydantic', 'sqlalchemy', 'typer', 'typing') "
        "if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(akadze.__file__).parents[1],
    )
    assert run.stdout == "[]\n"
