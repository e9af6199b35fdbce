"""All that comes out of akadze in a test, searched for secrets at its end."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import pytest

from tests.faults.leaking import SECRET

PASSWORD = "p4ssw0rd-of-the-role"


class Seen:
    """All that came out: logs of all loggers at debug level, both streams, and what a test adds."""

    def __init__(self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        self._caplog = caplog
        self._capfd = capfd
        self._added: list[str] = []

    def add(self, text: str) -> None:
        self._added.append(text)

    def add_error(self, error: BaseException) -> None:
        self.add("".join(traceback.format_exception(error)) + repr(error) + str(error))

    def all(self) -> str:
        out, err = self._capfd.readouterr()
        # Records that the test's own handler did not format are there too.
        records = [f"{record.getMessage()} {record.args!r}" for record in self._caplog.records]
        return "\n".join([*self._added, *records, self._caplog.text, out, err])


@pytest.fixture
def seen(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[Seen]:
    caplog.set_level(logging.DEBUG)
    seen = Seen(caplog, capfd)
    yield seen
    shown = seen.all()
    for secret in (SECRET, PASSWORD):
        place = shown.find(secret)
        assert place < 0, f"a secret was shown: {shown[max(place - 500, 0) : place + 100]}"
