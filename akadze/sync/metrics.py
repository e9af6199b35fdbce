"""Metrics in Prometheus' text format, blocking."""

from __future__ import annotations

from akadze._sync.metrics import render_metrics

__all__ = ["render_metrics"]
