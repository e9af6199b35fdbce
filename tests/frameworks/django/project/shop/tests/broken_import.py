"""A module that imports what is not installed."""

from __future__ import annotations

import no_such_package  # noqa: F401
