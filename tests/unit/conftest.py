"""Property tests run without time limits: a busy machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("akadze", deadline=None)
settings.load_profile("akadze")
