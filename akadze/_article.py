"""How messages name a type, and show a value that was given."""

from __future__ import annotations

__all__ = ["shown", "with_article"]

#: Characters of a value.
_MOST = 100


def with_article(kind: type) -> str:
    """Return the name of the type behind ``a`` or ``an``; that of None stands alone."""
    if kind is type(None):
        return "None"
    return f"{'an' if kind.__name__[:1].lower() in 'aeio' else 'a'} {kind.__name__}"


def shown(value: object) -> str:
    """Return a value as a message shows it: in short, and by its type if it has no text (an int of 5000 digits)."""
    try:
        text = repr(value)
    except Exception:
        return f"{with_article(type(value))} that cannot be shown"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
