"""Pages that a script writes: put in place, or compared with what is there."""

from __future__ import annotations

import difflib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def settle(name: str, text: str, *, check: bool, source: str) -> int:
    """Write the page ``docs/<name>.md``, or with ``check`` say how it differs; return the exit code.

    ``source`` is what the page is made of, in words.
    """
    page = ROOT / "docs" / f"{name}.md"
    current = page.read_text(encoding="utf-8") if page.exists() else ""
    if text == current:
        return 0
    if not check:
        page.write_text(text, encoding="utf-8")
        return 0
    shown = f"docs/{name}.md"
    print("\n".join(difflib.unified_diff(current.splitlines(), text.splitlines(), shown, source, "", "", 1, "")))
    print(f"{shown} is not what {source} say: run scripts/make_{name}_page.py")
    return 1
