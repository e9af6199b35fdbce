"""Each promise of docs/guarantees.md names the tests that show it, and they exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.markdown import ROOT

_PAGE = ROOT / "docs" / "guarantees.md"
_NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def promises(text: str) -> list[str]:
    """The items of the page's lists, each with its first line and what belongs to it."""
    return re.findall(r"^- .*\n(?:  .*\n)*", text, re.MULTILINE)


def names_in(path: str) -> set[str]:
    """The names of the tests in a module, none if there is no such module."""
    if not (ROOT / path).is_file():
        return set()
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def missing(promise: str) -> list[str]:
    """The tests that a promise names and that do not exist."""
    return [f"{path}::{name}" for path, name in _NAMED.findall(promise) if name not in names_in(path)]


def title(promise: str) -> str:
    return " ".join(promise.split("`tests/")[0].split())[2:60]


PROMISES = promises(_PAGE.read_text("utf-8"))


@pytest.mark.parametrize("promise", PROMISES, ids=title)
def test_a_promise_names_tests_that_exist(promise: str) -> None:
    assert _NAMED.findall(promise), "a promise without a test"
    assert missing(promise) == []
    assert promise.count("`tests/") == len(_NAMED.findall(promise)), "a test that is not named as `path::name`"


def test_every_item_of_the_page_is_a_promise() -> None:
    lines = _PAGE.read_text("utf-8").splitlines()
    assert len(PROMISES) == sum(line.startswith("- ") for line in lines) > 20


def test_a_test_that_does_not_exist_is_found_out() -> None:
    [first, second] = promises(
        "words\n\n- One.\n  `tests/docs/test_guarantees.py::test_not_there`\n"
        "- Two, of\n  `tests/docs/test_guarantees.py::test_a_test_that_does_not_exist_is_found_out`\n\nwords\n"
    )
    assert missing(first) == ["tests/docs/test_guarantees.py::test_not_there"]
    assert missing(second) == []
    assert missing("`tests/docs/nowhere.py::test_x`") == ["tests/docs/nowhere.py::test_x"]
