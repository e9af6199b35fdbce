"""Drain: run what is ready, in the process of a test."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

from akadze import _rows
from akadze._async.transitions import Hooks, cancel_doomed, finish, watch_claims
from akadze._bodies import drain_body_async, drain_pause_async, judged, refused
from akadze._claimed import ClaimedRun
from akadze._connections import AsyncCaller, async_caller
from akadze._log import get_logger
from akadze._options import check_number
from akadze._session_types import AnyAsyncSession
from akadze._sqlstates import is_data_error
from akadze._statement import statement
from akadze._verdict import HAND_BACK, Move
from akadze.app import Akadze
from akadze.errors import AkadzeError
from akadze.hooks import Spoilt, refuse_async

logger = get_logger("akadze.testing")

_LOCK_LIMITS = statement("drain", "lock_limits")
_CLAIM_READY = statement("drain", "claim_ready")
_FIND_READY = statement("drain", "find_ready")
_FIND_RUNS = statement("drain", "find_runs")
_INSERT_WORKER = statement("workers", "insert_worker")
_DELETE_WORKER = statement("workers", "delete_worker")
_OWNED_RUNS = statement("finish", "owned_runs")

#: The error of such a run.
_UNDONE = (
    "the success of the job was rolled back, with a transaction or savepoint that the body had open around "
    "complete_tx: open it inside the block"
)

_DRAIN_LIMIT = 1000
#: Seconds for which the jobs of a drain are its own; it does not beat.
_TTL = 3600.0
#: How often an outcome is tried to be written while somebody holds the row; some seconds, with the pauses in between.
_TRIES = 200


async def drain(app: Akadze, /, *, limit: int = _DRAIN_LIMIT, session: AnyAsyncSession | None = None) -> None:
    """Run every job that is ready now, one after another. Jobs scheduled in the future stay queued.

    Ready means a claim can take it, or a step cancels it (cancel requested, expired). Jobs of a paused queue stay
    queued. A job that a limit holds back keeps drain stepping until its window passes or ``limit`` runs out; under a
    limit of 0, which lets nothing start, drain ends when no other job is left.

    With ``session``, an open connection or session, everything happens in its own open transaction: jobs that it has
    not committed are run, and all of it vanishes with its rollback. A job that fails leaves the transaction usable.

    Raises AkadzeError if a ready job's task is not registered on ``app`` (a worker would leave it queued), if jobs are
    still ready after ``limit`` runs or wait under a limit of 0, if another transaction keeps hold of a job that has
    run, or if the session cannot be used; and what an ``on_transition`` hook raised that has cost the connection.
    """
    if not isinstance(app, Akadze):
        raise AkadzeError(f"app is of type {type(app).__name__}: pass the Akadze app whose jobs are to be run")
    runs = check_number("limit", limit, 1)
    joined = None if session is None else async_caller(session, error=AkadzeError)
    if True:  # ASYNC
        hooks = app.hooks.on_transition
    else:
        refuse_async(
            app.hooks.on_transition,
            "on_transition",
            error=AkadzeError,
            call="this drain",
            instead="use akadze.testing.drain",
        )
        hooks = app.hooks.on_transition
    worker_id = uuid4()
    try:
        await _register(app, joined, worker_id)
        await _run_ready(app, joined, worker_id, runs, hooks)
        await _unregister(app, joined, worker_id)
    except GeneratorExit:
        raise  # nothing can be awaited any more
    except BaseException as error:
        with suppress(Exception):  # what has happened is told, not that a broken session takes nothing more
            if not isinstance(error, Exception):  # cancelled, or interrupted by Ctrl-C
                await _hand_back(app, joined, worker_id)
            await _unregister(app, joined, worker_id)
        if isinstance(error, Spoilt):
            raise error.error from error.error.__cause__
        raise


async def _run_ready(app: Akadze, joined: AsyncCaller | None, worker_id: UUID, runs: int, hooks: Hooks) -> None:
    put_off: list[int] = []
    refused_jobs: set[int] = set()
    for _ in range(runs):
        async with _step(app, joined) as caller:
            await _cancel_doomed(caller, hooks, refused_jobs)
            run = await _claim(app, caller, worker_id, joined, put_off)
            ready = None if run is not None else await _ready(app, caller, put_off)
        if run is not None:
            if await _finish(app, joined, run):
                put_off.append(run.id)
        elif ready is None:
            return
        elif ready["closed"]:
            raise AkadzeError(
                f"jobs of task {ready['task']!r} are ready, but the limit of their limit_key is 0, so none of them "
                "ever starts: clear that limit or raise it before the drain"
            )
        else:
            await drain_pause_async()
    async with _step(app, joined) as caller:
        ready = await _ready(app, caller, put_off)
    if ready is not None:
        raise AkadzeError(_left(ready, runs, held_back=run is None))


async def _cancel_doomed(caller: AsyncCaller, hooks: Hooks, refused: set[int]) -> None:
    before = -1
    while before < len(refused):
        before = len(refused)
        while await cancel_doomed(caller, hooks, None, apart=refused, refused=refused):
            pass


async def _claim(
    app: Akadze, caller: AsyncCaller, worker_id: UUID, joined: AsyncCaller | None, put_off: list[int]
) -> ClaimedRun | None:
    await caller.rows(_LOCK_LIMITS)
    rows = await caller.rows(_CLAIM_READY, tasks=sorted(app.tasks), worker=str(worker_id), put_off=put_off)
    if not rows or await watch_claims(
        caller, app.hooks.on_transition, worker_id, [(rows[0]["id"], rows[0]["run_count"])]
    ):
        return None
    return ClaimedRun(app, worker_id, _rows.claimed(rows[0]), joined)


async def _ready(app: Akadze, caller: AsyncCaller, put_off: list[int]) -> dict[str, Any] | None:
    rows = await caller.rows(_FIND_READY, tasks=sorted(app.tasks), put_off=put_off)
    if not rows:
        return None
    if not rows[0]["known"]:
        raise AkadzeError(f"a job of task {rows[0]['task']!r} is ready, but the task is not registered on this app")
    return rows[0]


def _left(ready: dict[str, Any], runs: int, *, held_back: bool) -> str:
    left = f"jobs of task {ready['task']!r} are still ready after {runs} runs"
    if held_back and ready["limited"]:
        return f"{left}, held back by the limit of their limit_key: clear that limit or raise it before the drain"
    return f"{left}: give drain a higher limit, or see what makes them"


async def _finish(app: Akadze, joined: AsyncCaller | None, run: ClaimedRun) -> bool:
    """Run the body and write its outcome; tell whether the job is queued again for later."""
    move = await drain_body_async(run)
    if move is None:
        if joined is None:
            return False
        async with _step(app, joined) as caller:
            if not await _is_owned(caller, run):
                return False
        move = judged(run, AkadzeError(_UNDONE))
    for _ in range(_TRIES):
        try:
            settled = await _write(app, joined, run, move)
        except Exception as error:
            if not is_data_error(error):
                raise
            move = refused(run, move.outcome(run.id, run.number))
            settled = await _write(app, joined, run, move)
        if settled:
            return bool(move.delay)
        # A claim or a cancel request of somebody else holds the row for a moment.
        await drain_pause_async()
    raise AkadzeError(
        f"job {run.id} has run, and another transaction holds its row, so that its end cannot be written: commit or "
        "roll back what has touched the job before the drain"
    )


async def _write(app: Akadze, joined: AsyncCaller | None, run: ClaimedRun, move: Move) -> bool:
    """Write the outcome; tell whether there is nothing more to do."""
    outcome = (run.id, run.number, move.outcome(run.id, run.number))
    async with _step(app, joined) as caller:
        written, unwanted = await finish(caller, app.hooks.on_transition, run.worker_id, [outcome])
        return bool(written or unwanted) or not await _is_owned(caller, run)


async def _hand_back(app: Akadze, joined: AsyncCaller | None, worker_id: UUID) -> None:
    async with _step(app, joined) as caller:
        runs = [(row["id"], row["run_count"]) for row in await caller.rows(_FIND_RUNS, worker=str(worker_id))]
        outcomes = [(*run, HAND_BACK.outcome(*run)) for run in runs]
        await finish(caller, app.hooks.on_transition, worker_id, outcomes)


async def _is_owned(caller: AsyncCaller, run: ClaimedRun) -> bool:
    return bool(await caller.rows(_OWNED_RUNS, ids=[run.id], runs=[run.number], worker=str(run.worker_id)))


@asynccontextmanager
async def _step(app: Akadze, joined: AsyncCaller | None) -> AsyncIterator[AsyncCaller]:
    if joined is not None:
        async with joined.savepoint():
            yield joined
    else:
        if True:  # ASYNC
            engine = app.engine
        else:
            engine = app.sync_engine
        async with engine.begin() as connection:
            yield async_caller(connection)


async def _register(app: Akadze, joined: AsyncCaller | None, worker_id: UUID) -> None:
    """Show the drain as a worker, so that running workers do not take its jobs for lost.

    On a session, too: in autocommit they see what it claims.
    """
    async with _step(app, joined) as caller:
        await caller.rows(
            _INSERT_WORKER, id=str(worker_id), hostname=socket.gethostname(), pid=os.getpid(), queues=[], ttl=_TTL
        )


async def _unregister(app: Akadze, joined: AsyncCaller | None, worker_id: UUID) -> None:
    async with _step(app, joined) as caller:
        await caller.rows(_DELETE_WORKER, id=str(worker_id))
