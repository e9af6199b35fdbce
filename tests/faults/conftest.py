"""Fixtures for what an application, a row written by hand or the database does to a worker."""

from __future__ import annotations

from tests.worker.conftest import serve, table

__all__ = ["serve", "table"]
