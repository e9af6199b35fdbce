"""How messages name a type."""

from __future__ import annotations

__all__ = ["with_article"]


def with_article(kind: type) -> str:
    """Return the name of the type behind ``a`` or ``an``; that of None stands alone."""
    if kind is type(None):
        return "None"
    return f"{'an' if kind.__name__[:1].lower() in 'aeio' else 'a'} {kind.__name__}"
