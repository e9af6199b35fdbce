"""What a task body returned, on its way out of where the body runs."""

from __future__ import annotations

from typing import Any

from akadze._results import ResultNotJson, result_to_json

__all__ = ["Returned", "text_of"]


class Returned:
    """What a body returned, as JSON text.

    It is made of the value where the body runs, inside of its around_run hooks: an iterator does its work only then,
    and that of a plain function may block. A value that has no JSON form is an error only after the hooks that follow.
    """

    __slots__ = ("_error", "_text")

    def __init__(self, value: Any) -> None:
        self._text: str | None = None
        self._error: ResultNotJson | None = None
        try:
            self._text = result_to_json(value)
        except ResultNotJson as error:
            self._error = error

    def text(self) -> str | None:
        """Return the text, None for None. Raises ResultNotJson."""
        if self._error is not None:
            raise self._error
        return self._text


def text_of(returned: Returned | None) -> str | None:
    """The same, and None where an around_run hook has swallowed the error of the body."""
    return returned.text() if returned is not None else None
