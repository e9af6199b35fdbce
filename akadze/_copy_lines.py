"""Jobs in COPY's text format. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from akadze._options import NewJob

_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def copy_lines(new: NewJob, arguments: Iterable[str]) -> str:
    """Return the lines for copy_jobs, or copy_simple_jobs for simple ones.

    They are one job for each text of arguments, with the shared options, to run at once.
    """
    fields = [_field(new.task), _field(new.queue), str(new.priority), str(new.max_attempts)]
    if not new.simple:
        expires_at = new.expires_at.isoformat() if new.expires_at is not None else None
        fields += [_field(expires_at), _field(new.limit_key), _field(new.meta)]
    shared = "\t".join(fields)
    return "".join([f"{shared}\t{_field(text)}\n" for text in arguments])


def _field(text: str | None) -> str:
    if text is None:
        return "\\N"
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text) if _SPECIAL.search(text) else text
