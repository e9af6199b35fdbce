"""Rules of the house that no linter knows; those of SQL and migrations stand for section 13 of the contract."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from akadze._sync.index_builds import builds_indexes, statements_of

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".github" / "workflows" / "tests.yml"
TEXT = {"", ".bash", ".css", ".html", ".js", ".md", ".py", ".sh", ".sql", ".toml", ".yml"}
STATEMENT = re.compile(
    r"\b(select|insert|update|delete|merge|truncate|copy)\b.*\bakadze\.\w", re.IGNORECASE | re.DOTALL
)


def files(*folders: str, suffix: str | None = None) -> list[Path]:
    """Return the text files below folders of the project."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    wanted = {suffix} if suffix else TEXT
    return sorted(
        path for path in found if path.is_file() and path.suffix in wanted and "__pycache__" not in path.parts
    )


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield each string of a module with its line, without the docstrings."""
    tree = ast.parse(source)
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    documented = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value for part in node.values if isinstance(part, ast.Constant))
            yield node.lineno, " ".join(str(part) for part in parts)


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in files("akadze", "scripts")}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_no_test_is_skipped_for_an_error() -> None:
    """It may be a fault of what is tested: a test asks beforehand for what it needs (`tests.servers`)."""
    found = [
        f"{name_of(path)}:{handler.lineno}"
        for path in files("tests", suffix=".py")
        if "pytest.skip(" in (text := path.read_text("utf-8"))
        for handler in ast.walk(ast.parse(text))
        if isinstance(handler, ast.ExceptHandler) and "pytest.skip(" in ast.unparse(handler)
    ]
    assert found == []


def test_no_python_module_holds_sql() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in files("akadze", suffix=".py")
        for line, text in texts_of(path.read_text("utf-8"))
        if STATEMENT.search(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('X = "select id from akadze.jobs"', [1]),
        ('X = f"""\n  DELETE from {x}, akadze.limits"""', [1]),
        ('X = ("update"\n     " akadze.jobs")', [1]),
        ('"""Docstrings may name akadze.jobs when they select words."""', []),
        ('X = "akadze.jobs"', []),
    ],
)
def test_sql_in_a_module_is_found(source: str, lines: list[int]) -> None:
    assert sorted({line for line, text in texts_of(source) if STATEMENT.search(text)}) == lines


def test_no_statement_casts_with_colons() -> None:
    statements = files("akadze/_sql", "akadze/_migrations", suffix=".sql")
    assert statements
    # Drivers read ":name" of "::name" as a parameter, each in its own way.
    assert [name_of(path) for path in statements if "::" in path.read_text("utf-8")] == []


def blocking_indexes(steps: list[str]) -> list[str]:
    """Return the indexes that migrations build on tables that may be big already, and keep from being written to."""
    word = r"(?:if not exists\s+)?([\w.]+)"
    return [
        index[0]
        for step in steps
        for index in re.finditer(
            r"create (?:unique )?index\s+(?!concurrently\b)[^;]*?\bon\s+(?:only\s+)?([\w.]+)", step
        )
        if index[1] not in re.findall(rf"create table\s+{word}", step)
    ]


def test_no_migration_builds_an_index_that_keeps_others_from_writing() -> None:
    steps = [path.read_text("utf-8") for path in files("akadze/_migrations", suffix=".sql")]
    assert steps
    assert blocking_indexes(steps) == []


def test_an_index_on_a_table_of_an_earlier_migration_is_found() -> None:
    made = "create table akadze.jobs (id int);\ncreate unique index a on akadze.jobs (id);"
    later = "create index b\n  on akadze.jobs (id);\ncreate index concurrently c on akadze.jobs (id);"
    assert blocking_indexes([made, later]) == ["create index b\n  on akadze.jobs"]


def not_repeatable(step: str) -> list[str]:
    """Return the indexes that a step builds beside writers without dropping first what an interrupted try has left."""
    made = re.finditer(r"create (?:unique )?index concurrently\s+(\w+)\s+on\s+(?:only\s+)?(\w+)\.", step)
    gone = {found[1]: found.start() for found in re.finditer(r"drop index concurrently if exists\s+([\w.]+)", step)}
    return [found[1] for found in made if gone.get(f"{found[2]}.{found[1]}", len(step)) > found.start()]


def test_each_migration_that_builds_beside_writers_can_be_done_again_and_does_nothing_else() -> None:
    steps = [
        step for path in files("akadze/_migrations", suffix=".sql") if builds_indexes(step := path.read_text("utf-8"))
    ]
    assert [index for step in steps for index in not_repeatable(step)] == []
    assert [text for step in steps for text in statements_of(step) if "index concurrently" not in text] == []


def test_an_index_that_would_not_be_built_again_is_found() -> None:
    made = "create index concurrently a on akadze.jobs (id);\n"
    assert not_repeatable(made) == ["a"]
    assert not_repeatable(made + "drop index concurrently if exists akadze.a;") == ["a"]
    assert not_repeatable("drop index concurrently if exists akadze.b;\n" + made) == ["a"]
    assert not_repeatable("drop index concurrently if exists akadze.a;\n" + made) == []


@pytest.mark.parametrize("package", ["akadze", "tests"])
def test_each_module_has_a_twin_and_each_twin_a_module(package: str) -> None:
    modules, twins = (
        {path.relative_to(ROOT / package / folder) for path in files(f"{package}/{folder}", suffix=".py")}
        for folder in ("_async", "_sync")
    )
    assert modules == twins


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(rf"\b({'TO' + 'DO'}|{'FIX' + 'ME'})\b")
    paths = [*files("akadze", "docs", "scripts", "tests"), *ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    found = [
        f"{name_of(path)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_the_version_is_the_same_everywhere() -> None:
    from akadze import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def versions(name: str) -> list[str]:
    """Return the values of a variable of the matrix of CI, the lowest first."""
    [values] = re.findall(rf"^ +{name}: \[(.+)\]$", CI.read_text("utf-8"), re.MULTILINE)
    return sorted(re.findall(r'"([^"]+)"', values), key=lambda version: [int(part) for part in version.split(".")])


def test_ci_begins_with_the_oldest_python_and_postgresql_that_users_are_told_of() -> None:
    python, server = versions("python")[0], versions("postgresql")[0]
    assert (python, server) == ("3.11", "13")
    assert f"\nakadze needs Python {python} and PostgreSQL {server}, or newer.\n" in (ROOT / "README.md").read_text(
        "utf-8"
    )
    contributing = " ".join((ROOT / "CONTRIBUTING.md").read_text("utf-8").split())
    assert f"You need Python {python} or newer" in contributing
    assert f"PostgreSQL {server} is the oldest server" in contributing


def test_the_package_is_for_the_pythons_that_ci_runs() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    oldest = versions("python")[0]
    assert settings["project"]["requires-python"] == f">={oldest}"
    told = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in settings["project"]["classifiers"]
    ]
    assert [match[1] for match in told if match] == versions("python")
    assert settings["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert settings["tool"]["mypy"]["python_version"] == oldest
    # The job that checks types and layout has no matrix.
    assert re.findall(r'python-version: "(.+)"', CI.read_text("utf-8")) == [oldest]
