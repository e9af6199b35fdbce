"""Jobs: list, cancel, requeue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from akadze import _rows
from akadze._article import shown
from akadze._connections import AsyncCaller, async_caller, async_reading
from akadze._options import check_job_id, check_meta, check_number, check_queue
from akadze._session_types import AnyAsyncSession, AnyAsyncSource
from akadze._sqlstates import UNIQUE_VIOLATION, sqlstate
from akadze._statement import statement
from akadze._states import FAILED, STATES
from akadze.errors import AkadzeError
from akadze.summaries import JobSummary

_LIST_JOBS = statement("jobs", "list_jobs")
_REQUEST_CANCEL = statement("jobs", "request_cancel")
_REQUEUE_JOB = statement("jobs", "requeue_job")

_LIMIT_DEFAULT = 50
_LIMIT_MOST = 1000


async def request_cancel(session: AnyAsyncSession, job_id: int) -> None:
    """Ask a queued or running job to stop, in the transaction of the session. The worker applies the cancellation.

    A queued job is cancelled without running. A running job is not interrupted: if its body returns a storable result,
    or its ``complete_tx`` block commits, it ends succeeded; otherwise cancelled. A job that has ended stays as it is.
    Raises AkadzeError if there is no such job, or the session cannot be used; the transaction stays usable.
    """
    caller = async_caller(session, error=AkadzeError)
    if not await caller.rows(_REQUEST_CANCEL, id=check_job_id(job_id)):
        raise AkadzeError(f"there is no job {job_id}: it may have been deleted after the retention time")


async def requeue(session: AnyAsyncSession, job_id: int) -> None:
    """Return a failed job to the queue, in the transaction of the session. Keeps attempt, errors, and args.

    ``max_attempts`` is raised by what one more attempt needs. Raises AkadzeError if there is no such job, it has not
    failed, or its ``unique_key`` has another holder now; the transaction stays usable.
    """
    caller = async_caller(session, error=AkadzeError)
    taken = f"job {check_job_id(job_id)} cannot be requeued: another queued or running job holds its unique_key"
    try:
        async with caller.savepoint():
            rows = await caller.rows(_REQUEUE_JOB, id=job_id)
            if rows and not rows[0]["requeued"] and rows[0]["state"] == FAILED:
                # That is the state from before a wait for another transaction, which may have changed it.
                rows = await caller.rows(_REQUEUE_JOB, id=job_id)
    except Exception as error:
        if sqlstate(error) == UNIQUE_VIOLATION:
            raise AkadzeError(taken) from error
        raise
    if not rows:
        raise AkadzeError(f"there is no job {job_id}: it may have been deleted after the retention time")
    if not rows[0]["requeued"]:
        if rows[0]["state"] == FAILED:
            raise AkadzeError(taken)
        raise AkadzeError(f"job {job_id} is {rows[0]['state']}: only a failed job can be requeued")


async def list_jobs(
    engine: AnyAsyncSource,
    *,
    queue: str | None = None,
    state: str | None = None,
    limit: int = _LIMIT_DEFAULT,
    meta: Mapping[str, Any] | None = None,
) -> tuple[JobSummary, ...]:
    """Return job summaries, highest priority first, then by run_at and id. Does not mutate rows.

    ``meta`` keeps jobs whose metadata contains every given key with just that value, types included. ``limit`` is 1 to
    1000. Raises AkadzeError for a limit out of range, an unknown state, or a queue or meta that no job can have.
    """
    most = check_number("limit", limit, 1, _LIMIT_MOST)
    named = None if queue is None else check_queue(queue)
    if state is not None and state not in STATES:
        raise AkadzeError(f"state is {shown(state)}: it must be one of {', '.join(STATES)}")
    plain_state = None if state is None else STATES[STATES.index(state)]
    wanted = check_meta(meta, error=AkadzeError)
    async with async_reading(engine) as caller:
        return await read_summaries(caller, queue=named, state=plain_state, task=None, meta=wanted, limit=most)


async def read_summaries(
    caller: AsyncCaller,
    *,
    queue: str | None,
    state: str | None,
    task: str | None,
    meta: str,
    limit: int,
    newest: bool = False,
) -> tuple[JobSummary, ...]:
    """Return summaries of jobs, in the order of list_jobs or the newest first. What it is given has been checked."""
    rows = await caller.rows(_LIST_JOBS, queue=queue, state=state, task=task, meta=meta, limit=limit, newest=newest)
    return tuple(_rows.job_summary(row) for row in rows)
