"""Gauges in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Family", "render"]


@dataclass(frozen=True, slots=True)
class Family:
    """One gauge: its samples are pairs of labels and value, no two with equal labels."""

    name: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float | int]]


def render(families: Sequence[Family]) -> str:
    """Return the text of these gauges. HELP and TYPE are there once each, also for a gauge without samples."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} gauge")
        lines += (f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples)
    return "".join(f"{line}\n" for line in lines) or "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
    return repr(value + 0)  # + 0 turns True into 1
