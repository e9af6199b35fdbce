"""Waiting in both colours: `await until(...)`, and `wait_until(...)` where there is no loop."""

from __future__ import annotations

from tests._async.waiting import PATIENCE, until
from tests._sync.waiting import until as wait_until

__all__ = ["PATIENCE", "until", "wait_until"]
