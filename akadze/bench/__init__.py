"""``akadze bench``: what akadze and plain SQL reach on a server of one's own."""

from __future__ import annotations

from akadze.bench.measure import run

__all__ = ["run"]
