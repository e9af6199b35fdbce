from __future__ import annotations

from tests.claims.exchanges import make_exchange, way
from tests.claims.fixtures import connect, line, watcher

__all__ = ["connect", "line", "make_exchange", "watcher", "way"]
