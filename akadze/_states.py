"""The states of a job and the moves between them.

``state`` is written only by these statements:

============ ======================= ===============================================
file         statement               move
============ ======================= ===============================================
enqueue.sql  insert_job, insert_unique_job, insert_jobs to queued; a dead holder's queued to cancelled
schedules.sql fire_slot              to queued
claim.sql    claim_plain, take_chosen queued to running
drain.sql    claim_ready             queued to running
finish.sql   finish_runs             running to any state: the one door out
rescue.sql   rescue_jobs             running to queued, failed or cancelled
rescue.sql   cancel_doomed           queued to cancelled
jobs.sql     requeue_job             failed to queued
============ ======================= ===============================================
"""

from __future__ import annotations

QUEUED = "queued"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"

STATES = (QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED)
FINAL = frozenset({SUCCEEDED, FAILED, CANCELLED})
