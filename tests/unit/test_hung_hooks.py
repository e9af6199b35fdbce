"""Contract, section 11: what is found in an error that a hook has raised, whatever came before it."""

from __future__ import annotations

import pytest

from akadze.hooks import HookHung, hung_in


class _WithoutContext(Exception):
    @property
    def __context__(self) -> BaseException | None:  # type: ignore[override]
        raise ZeroDivisionError


def test_a_hook_that_hung_is_found_behind_the_errors_that_came_after_it() -> None:
    hung, later, last = HookHung("hung"), ValueError(), ValueError()
    later.__context__, last.__context__ = hung, later
    assert hung_in(last) is hung
    assert hung_in(hung) is hung
    assert hung_in(None) is None


@pytest.mark.parametrize("length", [1, 2, 3])
def test_errors_that_lead_back_to_themselves_are_looked_at_once(length: int) -> None:
    errors = [ValueError() for _ in range(length)]
    first = ValueError()
    for error, before in zip([first, *errors], [*errors, errors[0]], strict=True):
        error.__context__ = before
    assert hung_in(first) is None


def test_an_error_whose_context_cannot_be_read_has_none() -> None:
    assert hung_in(_WithoutContext()) is None
