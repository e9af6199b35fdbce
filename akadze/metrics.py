"""Metrics in Prometheus' text format; ``akadze.sync.metrics`` has the same, blocking."""

from __future__ import annotations

from akadze._async.metrics import render_metrics

__all__ = ["render_metrics"]
