"""The moves between states that a worker, a rescue or a drain makes, with the hooks that watch them.

Without on_transition hooks each is one statement for a whole batch. With hooks each job has a savepoint of its own, so
that a hook that raises rolls back its own job's move and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from akadze import _rows
from akadze._connections import AsyncCaller
from akadze._log import get_logger
from akadze._sqlstates import is_connection_lost, is_data_error
from akadze._statement import Statement, statement
from akadze._states import QUEUED, RUNNING
from akadze.hooks import Spoilt, async_call_watcher, hung_in, told

logger = get_logger("akadze.job")

_READ_JOBS = statement("jobs", "read_jobs")
_FINISH_RUNS = statement("finish", "finish_runs")
_REFUSE_CLAIMS = statement("finish", "refuse_claims")
_LOCK_LOST_JOBS = statement("rescue", "lock_lost_jobs")
_RESCUE_JOBS = statement("rescue", "rescue_jobs")
_LOCK_DOOMED_JOBS = statement("rescue", "lock_doomed_jobs")
_CANCEL_DOOMED = statement("rescue", "cancel_doomed")
# Any statement will do: in a broken transaction it raises.
_CHECK_TRANSACTION = statement("session", "begin_work")

Hooks = Sequence[Callable[..., Any]]

#: How long a job whose claim a hook refused stays out of the line, in seconds.
REFUSED_FOR = 1.0
#: Seconds after which a batch whose hooks are slow is cut off, so that its locks and its transaction do not last.
LONGEST = 10.0


async def tell(caller: AsyncCaller, hooks: Hooks, ids: Sequence[int], from_state: str, to_state: str) -> None:
    """Call the on_transition hooks for jobs that this transaction has just moved.

    An error of the database that a hook has caught comes out here: it has broken the transaction all the same.
    """
    if not hooks:
        return
    for row in await caller.rows(_READ_JOBS, ids=list(ids)):
        job = _rows.job(row)
        for hook in hooks:
            await async_call_watcher(hook, caller.connection, job, from_state, to_state)
    await caller.rows(_CHECK_TRANSACTION)


async def finish(
    caller: AsyncCaller,
    hooks: Hooks,
    worker_id: UUID,
    outcomes: Sequence[tuple[int, int, str]],
    known: Collection[tuple[int, int]] = (),
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Write outcomes (id, run, JSON) of this worker's runs in the caller's transaction.

    Returns the runs that were written, and those whose hook raised: they stay running; a hook is known to have raised
    for the runs in ``known``. A run in neither list was not this worker's any more, or its row was locked.
    """
    if not hooks:
        text = f"[{','.join(outcome for _, _, outcome in outcomes)}]"
        rows = await caller.rows(_FINISH_RUNS, outcomes=text, worker=str(worker_id))
        return [(row["id"], row["run_count"]) for row in rows], []
    written: list[tuple[int, int]] = []
    refused: list[tuple[int, int]] = []
    for job_id, run, outcome in outcomes:
        if (job_id, run) in known:
            refused.append((job_id, run))
            continue
        ended: list[dict[str, Any]] = []
        try:
            async with caller.savepoint():
                ended = await caller.rows(_FINISH_RUNS, outcomes=f"[{outcome}]", worker=str(worker_id))
                if ended:
                    await tell(caller, hooks, [job_id], RUNNING, ended[0]["state"])
                    written.append((job_id, run))
        except Exception as error:
            if not ended and is_data_error(error):
                raise  # no hook was called: the database refuses the outcome itself
            await _raise_if_spoilt(caller, (job_id, run), error)
            logger.error("job %s stays running: an on_transition hook refused its outcome: %s", job_id, told(error))
            refused.append((job_id, run))
    return written, refused


async def watch_claims(
    caller: AsyncCaller,
    hooks: Hooks,
    worker_id: UUID,
    runs: Sequence[tuple[int, int]],
    known: Collection[tuple[int, int]] = (),
    *,
    put_off: Callable[[int], float] | None = None,
) -> set[int]:
    """Call the hooks for runs that this transaction has claimed; return the jobs that a hook refused, put back.

    ``put_off`` tells of such a job for how many seconds it stays out of the line, a second if it is not given.
    """
    refused: set[int] = set()
    for job_id, run in runs:
        if (job_id, run) in known:
            refused.add(job_id)
            continue
        try:
            async with caller.savepoint():
                await tell(caller, hooks, [job_id], QUEUED, RUNNING)
        except Exception as error:
            await _raise_if_spoilt(caller, (job_id, run), error)
            logger.error("job %s stays queued: an on_transition hook refused its start: %s", job_id, told(error))
            refused.add(job_id)
    delays = {job_id: REFUSED_FOR if put_off is None else put_off(job_id) for job_id in refused}
    for delay in set(delays.values()):
        ids = sorted(job_id for job_id in refused if delays[job_id] == delay)
        await caller.rows(_REFUSE_CLAIMS, ids=ids, worker=str(worker_id), delay=delay)
    return refused


async def rescue(
    caller: AsyncCaller,
    hooks: Hooks,
    *,
    rescuer: UUID | None = None,
    apart: Collection[int] = (),
    refused: set[int] | None = None,
    longest: float = LONGEST,
) -> list[dict[str, Any]]:
    """Take back a batch of lost workers' jobs in the caller's transaction; return id, state and worker_id of each.

    Those in ``apart`` and those of the worker ``rescuer`` itself are left alone; those whose hook raises are added to
    ``refused``. After ``longest`` seconds the rest of the batch is left for the next. Raises Spoilt when the connection
    is lost or given up in a hook, whose job is in ``refused``.
    """
    rows = await caller.rows(_LOCK_LOST_JOBS, apart=list(apart), rescuer=str(rescuer) if rescuer else None)
    return await _move(caller, hooks, [row["id"] for row in rows], _RESCUE_JOBS, RUNNING, refused, longest)


async def cancel_doomed(
    caller: AsyncCaller,
    hooks: Hooks,
    queues: list[str] | None,
    *,
    apart: Collection[int] = (),
    refused: set[int] | None = None,
    longest: float = LONGEST,
) -> list[dict[str, Any]]:
    """Cancel a batch of queued jobs (None: of all queues) that were asked to cancel or have expired.

    Returns id and state of each. ``apart``, ``refused``, ``longest`` and Spoilt are those of ``rescue``.
    """
    rows = await caller.rows(_LOCK_DOOMED_JOBS, queues=queues, apart=list(apart))
    return await _move(caller, hooks, [row["id"] for row in rows], _CANCEL_DOOMED, QUEUED, refused, longest)


async def _move(
    caller: AsyncCaller,
    hooks: Hooks,
    ids: list[int],
    move: Statement,
    from_state: str,
    refused: set[int] | None,
    longest: float,
) -> list[dict[str, Any]]:
    if not ids:
        return []
    if not hooks:
        return await caller.rows(move, ids=ids)
    moved: list[dict[str, Any]] = []
    end = time.monotonic() + longest
    for job_id in ids:
        if time.monotonic() > end:
            break  # the hooks are slow: what is left comes with the next batch
        try:
            async with caller.savepoint():
                rows = await caller.rows(move, ids=[job_id])
                for row in rows:
                    await tell(caller, hooks, [job_id], from_state, row["state"])
                moved += rows
        except Exception as error:
            if refused is not None:
                refused.add(job_id)
            # On a connection that the server has ended meanwhile the way back to the savepoint raises in its place.
            hung = hung_in(error)
            if hung is None:
                await _raise_if_spoilt(caller, (job_id, 0), error)
            logger.error(
                "job %s stays %s: an on_transition hook refused its move: %s", job_id, from_state, told(hung or error)
            )
            if hung is not None:
                hung.job_id = job_id
                raise hung from None  # what it waited for was cancelled, perhaps with the connection
    return moved


async def _raise_if_spoilt(caller: AsyncCaller, run: tuple[int, int], error: Exception) -> None:
    # What the error says does not tell: a hook may have lost a connection of its own, or wrapped or swallowed an error.
    # SQLAlchemy gives a connection up for a statement that was cancelled, as asyncio.timeout in a hook does.
    try:
        await caller.rows(_CHECK_TRANSACTION)
    except Exception:
        hung = hung_in(error)  # the way back to the savepoint may have raised in its place
        if hung is not None or not is_connection_lost(error):
            logger.error("job %s: an on_transition hook has cost the connection: %s", run[0], told(hung or error))
        raise Spoilt(run, error) from error
