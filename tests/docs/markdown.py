"""The fenced blocks of a page, and what the page says of how to run each.

An HTML comment right above a block marks it; readers do not see it:

- ``<!-- run: NAME -->``: run the block between the two halves of the set-up NAME (`tests.docs.setups`).
- ``<!-- file: NAME -->``: write the block to this file in the folder of the page's commands.
- ``<!-- from: PATH -->``: the block is a part of this file of the project, which is run by tests of its own.

A block of shell commands needs no mark: the commands are run in the page's folder, one after another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(\S*).*$")
_MARK = re.compile(r"^\s*<!-- (run|file|from): (\S+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, the line of its first line, and its mark."""

    page: str
    line: int
    language: str
    text: str
    mark: tuple[str, str] | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page of the project, in order."""
    return parse(page, (ROOT / page).read_text("utf-8"))


def parse(page: str, text: str) -> list[Block]:
    found: list[Block] = []
    lines = text.splitlines()
    mark: tuple[str, str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if match := _MARK.match(line):
            mark = (match[1], match[2])
        elif match := _FENCE.match(line):
            indent, fence, language = match.groups()
            first = number
            while not lines[number].strip().startswith(fence):
                number += 1
            body = "".join(f"{line.removeprefix(indent)}\n" for line in lines[first:number])
            found.append(Block(page, first + 1, language, body, mark))
            mark = None
            number += 1
        elif line.strip():
            mark = None
    return found
