"""Families of tests that together take long: a few of their parameters run always, the others with --full only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

#: Runs with --full only.
FULL = pytest.mark.heavy(short=False)


def few(parameters: Iterable[Any], *, kept: Collection[Any]) -> list[Any]:
    """Return the parameters of a parametrize, of which only those in `kept` run without --full.

    Parameters of several names are tuples.
    """
    parameters = list(parameters)
    assert all(values in parameters for values in kept), f"{kept!r} are not all among {parameters!r}"
    return [_param(values) if values in kept else _param(values, marks=FULL) for values in parameters]


def _param(values: Any, **marks: Any) -> Any:
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), **marks)
