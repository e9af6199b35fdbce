"""Dataclasses that are imported from another module than the one that they are written in."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

__all__ = ["publish"]


def publish(*classes: type[Any]) -> None:
    """Let dataclasses say that they come from ``akadze``.

    Their annotations are text, which pydantic and others look up in the module that a class says it is from: they are
    put in place before.
    """
    for public in classes:
        hints = get_type_hints(public)
        public.__annotations__ = hints
        for field in fields(public):
            field.type = hints[field.name]
        public.__module__ = "akadze"
