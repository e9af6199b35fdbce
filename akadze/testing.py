"""Helpers for tests of code that enqueues; ``akadze.sync.testing`` has the same, blocking."""

from __future__ import annotations

from akadze._async.drain import drain
from akadze._async.testing import assert_enqueued

__all__ = ["assert_enqueued", "drain"]
