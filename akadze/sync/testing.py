"""Helpers for tests of code that enqueues, blocking."""

from __future__ import annotations

from akadze._sync.drain import drain
from akadze._sync.testing import assert_enqueued

__all__ = ["assert_enqueued", "drain"]
