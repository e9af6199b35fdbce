"""A module that fails when it is imported."""

from __future__ import annotations

app = 1 / 0
