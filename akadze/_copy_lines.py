"""Jobs in COPY's text format. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from akadze._options import NewJob

_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def copy_lines(new: NewJob, arguments: Iterable[str]) -> str:
    """Return the lines for copy_jobs: one job for each text of arguments, with the shared options, to run at once."""
    shared = "\t".join(
        (
            _field(new.task),
            _field(new.queue),
            str(new.priority),
            str(new.max_attempts),
            _field(new.expires_at.isoformat() if new.expires_at is not None else None),
            _field(new.limit_key),
            _field(new.meta),
        )
    )
    return "".join([f"{shared}\t{_field(text)}\n" for text in arguments])


def _field(text: str | None) -> str:
    if text is None:
        return "\\N"
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text) if _SPECIAL.search(text) else text
