"""Contract, section 15: the metrics text, judged by Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from akadze._prometheus import Family, render

NAMES = [
    'a"b',
    "c\\d",
    "e\nf",
    "g\\n",
    "žluť",
    '{x="y"} 1',
    "",
    " ",
    "\\",
    '"',
    "\n",
    "a,b",
    "# HELP x",
    "\r",
    "\t",
    "🐎",
]


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.type == "gauge" for family in families)
    return {family.name: [(s.labels, s.value) for s in family.samples] for family in families}


def test_label_values_are_exactly_the_names() -> None:
    text = render([Family("akadze_jobs", "Jobs.", [({"queue": name, "state": "queued"}, 1) for name in NAMES])])
    assert parsed(text) == {"akadze_jobs": [({"queue": name, "state": "queued"}, 1.0) for name in NAMES]}
    assert text.endswith("\n")
    assert text.count("# HELP akadze_jobs ") == 1
    assert text.count("# TYPE akadze_jobs gauge\n") == 1


@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True))
def test_any_text_may_be_a_label(names: list[str]) -> None:
    text = render([Family("m", "Help.", [({"queue": name}, index) for index, name in enumerate(names)])])
    # The parser splits its input where a text file would have line ends; a scrape is split at line feeds only.
    lines = text.split("\n")
    assert len(lines) == len(names) + 3
    if not any(set(name) & set("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029") for name in names):
        assert parsed(text) == {"m": [({"queue": name}, float(index)) for index, name in enumerate(names)]}


def test_several_families_keep_their_order() -> None:
    text = render([Family("b", "B.", [({}, 1.5)]), Family("a", "A.", [({"x": "1"}, 2), ({"x": "2"}, 3)])])
    assert text == (
        "# HELP b B.\n# TYPE b gauge\nb 1.5\n# HELP a A.\n# TYPE a gauge\n"
        'a{x="1"} 2\na{x="2"} 3\n'
    )  # fmt: skip


@pytest.mark.parametrize("value", [0, 1, 10**15, 0.1, 1e300, 1e-300, -2.5, math.inf, -math.inf])
def test_a_value_is_read_back_as_it_was(value: float) -> None:
    assert parsed(render([Family("m", "M.", [({}, value)])])) == {"m": [({}, float(value))]}


def test_odd_values_have_their_spelling() -> None:
    text = render([Family("m", "M.", [({"k": "nan"}, math.nan), ({"k": "true"}, True)])])
    assert 'm{k="nan"} NaN\n' in text
    assert 'm{k="true"} 1\n' in text


def test_help_is_escaped() -> None:
    text = render([Family("m", 'A "quoted"\nback\\slash', [])])
    assert text == '# HELP m A "quoted"\\nback\\\\slash\n# TYPE m gauge\n'
    assert next(iter(text_string_to_metric_families(text))).documentation == 'A "quoted"\nback\\slash'


def test_a_family_without_samples_is_announced_all_the_same() -> None:
    text = render([Family("m", "M.", [])])
    assert text == "# HELP m M.\n# TYPE m gauge\n"
    assert parsed(text) == {"m": []}
    assert render([]) == "\n"
