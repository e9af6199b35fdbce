"""What akadze raises when it is used incorrectly."""

from __future__ import annotations

__all__ = ["AkadzeError", "DuplicateJob", "EnqueueError", "RunLost"]


class AkadzeError(Exception):
    """The caller used akadze incorrectly."""


class EnqueueError(AkadzeError):
    """The job was not inserted. The caller's transaction stays usable."""


class DuplicateJob(EnqueueError):
    """An active job already uses this unique_key. The caller's transaction stays usable."""


class RunLost(AkadzeError):
    """This run no longer owns its job: its lease ended and the job was taken back.

    Raised by ``complete_tx``; the writes of its block are rolled back.
    """


for _public in (AkadzeError, EnqueueError, DuplicateJob):
    _public.__module__ = "akadze"
