"""The connection on which a worker's exchange calls on_transition hooks, and what they may have done to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from akadze._async.transitions import REFUSED_FOR
from akadze._log import get_logger
from akadze._sqlstates import first_line, is_connection_lost
from akadze._statement import statement
from akadze._states import RUNNING
from akadze._worker.connect import HeldRaw
from akadze.app import Akadze
from akadze.hooks import HookFailed, HookHung, name_of, told, within
from akadze.job import Job

# Any statement will do.
_BEGIN_WORK = statement("session", "begin_work")
_FIND_TRANSACTION = statement("session", "find_transaction")

logger = get_logger("akadze.job")

RunKey = tuple[int, int]

#: Seconds after which it is asked whether the connection has outlived a hook.
_SLOW: Final = 0.05
#: How often in a row hooks may lose the connection of a transaction that is about their run alone, before that is taken
#: for their own doing.
_MOST_LOSSES: Final = 3
#: Seconds for which a job does not start whose hooks do this, or hang.
_PUT_OFF_FOR: Final = 60.0


class LostInHook(psycopg.OperationalError):
    """The connection was lost while hooks were called. By an outage or by them, fewer runs at once will tell."""


class Refusal(Exception):
    """An on_transition hook raised for this run, did not return in time, rolled back, or has cost the connection.

    None: for which run is not known.
    """

    def __init__(self, run: RunKey | None, *, spoilt: bool) -> None:
        super().__init__(f"a hook refused run {run[1]} of job {run[0]}" if run is not None else "a hook rolled back")
        self.run = run
        #: The connection is not to be used any more.
        self.spoilt = spoilt


class _Apart(set[RunKey]):
    def __init__(self, runs: Iterable[RunKey], is_put_off: Callable[[int], bool]) -> None:
        super().__init__(runs)
        self._is_put_off = is_put_off

    def __contains__(self, run: object) -> bool:
        return super().__contains__(run) or (isinstance(run, tuple) and self._is_put_off(run[0]))


class Hooked:
    """Opens the connection, calls the hooks on it, and tells an outage from what a hook has done.

    ``owned`` asks on another connection which of some runs are this worker's.
    """

    def __init__(
        self, app: Akadze, patience: float, owned: Callable[[Sequence[RunKey]], Awaitable[set[RunKey]]]
    ) -> None:
        self._app = app
        self._patience = patience
        self._owned = owned
        self._held: HeldRaw | None = None
        self._alone = False
        #: By job: how often in a row its hooks have lost the connection, and until when it is not started, since they
        #: lost it again and again, or hung at its start.
        self._losses: Counter[int] = Counter()
        self._until: dict[int, float] = {}

    async def open(self, *, alone: bool) -> HeldRaw:
        """Return the connection, opened anew if the last one was given up, for a transaction.

        ``alone`` tells that it is about one run at most.
        """
        if self._held is None:
            self._held = await HeldRaw.open_shared(self._app.engine)
        self._alone = alone
        return self._held

    async def give_up(self) -> None:
        """Close the connection after an error."""
        held, self._held = self._held, None
        if held is not None:
            await held.close()

    def worked(self) -> None:
        """Note that a transaction was committed."""
        self._losses.clear()
        if self._until:
            now = time.monotonic()
            self._until = {job_id: until for job_id, until in self._until.items() if now < until}

    def apart(self, runs: Iterable[RunKey]) -> set[RunKey]:
        """Return the set of these starts; it also holds, unseen, those of all jobs that are not started for a while.

        It is for starts only: the end of a run is written whatever the next start of its job does.
        """
        return _Apart(runs, self._is_put_off)

    async def call(self, read_job: Callable[[], Job], from_state: str, to_state: str, run: RunKey) -> None:
        """Call the hooks for a run. Raises Refusal for what they do, and LostInHook for what may be an outage."""
        held = self._held
        assert held is not None
        if to_state == RUNNING and self._is_put_off(run[0]):
            raise Refusal(run, spoilt=False)
        name, begun = "", time.monotonic()
        try:
            job = read_job()
            for hook, limited in zip([*self._app.hooks.on_transition], self.hooks(), strict=True):
                name = name_of(hook)
                await limited(held.owner, job, from_state, to_state)
                await self._check(held, name, to_state, run)
            if time.monotonic() - begun > _SLOW and _in_transaction(held):
                # The server may have ended the session meanwhile, and whoever asks next would be taken for the cause.
                await held.rows(_BEGIN_WORK)
        except Exception as error:
            hung = isinstance(error, HookHung)
            asked = held.raw.closed or is_connection_lost(error) or time.monotonic() - begun > _SLOW
            lost = not hung and asked and not await _answers(held)
            if hung or lost:
                # SQLAlchemy may not have noticed, and its rollback would raise in place of this.
                await _let_go(held)
            if lost:
                self.raise_if_lost(run, error, starting=to_state == RUNNING)
            said = told(error, f"the on_transition hook {name}".rstrip())
            logger.error("job %s stays %s: %s", run[0], from_state, said)
            raise Refusal(run, spoilt=hung or lost or not _in_transaction(held)) from error

    async def check_transaction(self, number: int, run: RunKey, *, starting: bool) -> None:
        """Raise Refusal if hooks have rolled back the transaction of this number, and one of them has begun another.

        The driver does not tell, where both were done in words. Which hook it was shows when each job has a savepoint.
        """
        held = self._held
        assert held is not None
        try:
            [(found,)] = await held.rows(_FIND_TRANSACTION)
        except Exception as error:
            if not is_connection_lost(error):
                raise
            # The server may have ended the session: all hooks together took too long for it.
            await _let_go(held)
            self.raise_if_lost(run, error, starting=starting)
            raise Refusal(run, spoilt=True) from error
        if found != number and starting != (run in await self._owned([run])):
            logger.error("an on_transition hook has rolled back the transaction, which is not its own")
            raise Refusal(None, spoilt=False)

    async def _check(self, held: HeldRaw, name: str, to_state: str, run: RunKey) -> None:
        """Raise for what a hook has swallowed or ended."""
        if _closed_by_hook(held):
            raise HookFailed(f"the hook {name} has closed the connection, which is not its own")
        if held.raw.closed:
            raise psycopg.OperationalError(f"the connection was lost in the hook {name}")
        if held.raw.info.transaction_status is TransactionStatus.INERROR:
            # The commit of such a transaction rolls back and says nothing.
            raise HookFailed(f"the hook {name} has swallowed an error of the database")
        # What a claim that is rolled back has brought must not run here: others may have those jobs by then.
        if not _in_transaction(held) and (to_state == RUNNING) != (run in await self._owned([run])):
            raise HookFailed(f"the hook {name} has rolled back the transaction, which is not its own")

    def raise_if_lost(self, run: RunKey, error: Exception, *, starting: bool) -> None:
        """Raise LostInHook for a connection that was lost in hooks of this run, unless it is clear that it was them.

        A start comes again and again, so it is refused for a while then; an end waits until the worker stops anyway.
        """
        held = self._held
        if held is None or not held.raw.closed or _closed_by_hook(held):
            return
        if self._alone:
            self._losses[run[0]] += 1
        if self._losses[run[0]] < _MOST_LOSSES:
            known = is_connection_lost(error)
            raise LostInHook(
                first_line(error) if known else "the connection was lost while a hook was called"
            ) from error
        if starting:
            self._put_off(run[0])

    def _put_off(self, job_id: int) -> None:
        self._until[job_id] = time.monotonic() + _PUT_OFF_FOR

    def seconds_off(self, job_id: int) -> float:
        """Return the seconds for which a job whose start was refused stays out of the line."""
        return max(self._until.get(job_id, 0.0) - time.monotonic(), REFUSED_FOR)

    def _is_put_off(self, job_id: int) -> bool:
        return self._until.get(job_id, 0.0) > time.monotonic()

    def hooks(self) -> list[Callable[..., Any]]:
        """Return the on_transition hooks, each limited in time."""
        return [partial(self._limited, hook) for hook in within(self._patience, self._app.hooks.on_transition)]

    async def _limited(
        self, hook: Callable[..., Any], connection: Any, job: Job, from_state: str, to_state: str
    ) -> None:
        try:
            await hook(connection, job, from_state, to_state)
        except HookHung as hung:
            if to_state != RUNNING:
                raise
            self._put_off(job.id)
            raise HookHung(f"{hung}, so the job does not start for {_PUT_OFF_FOR:g} s") from hung.__cause__


async def _let_go(held: HeldRaw) -> None:
    owner = held.owner
    if owner is not None and not (owner.closed or owner.invalidated):
        await owner.invalidate()


def _closed_by_hook(held: HeldRaw) -> bool:
    """Tell whether the connection was closed from this side: one that was lost is broken, too."""
    return (held.owner is not None and held.owner.closed) or (held.raw.closed and not held.raw.broken)


async def _answers(held: HeldRaw) -> bool:
    """Tell whether the connection is there: a hook may have lost another one, to a database of its own."""
    if held.raw.closed:
        return False
    try:
        await held.rows(_BEGIN_WORK)
    except Exception as error:
        return not is_connection_lost(error)
    return True


def _in_transaction(held: HeldRaw) -> bool:
    """Tell whether the transaction in which hooks are called is open, as they have to leave it."""
    owner = held.owner
    assert owner is not None
    # SQLAlchemy gives a connection up whose statement was cancelled; that of the driver is still open then.
    gone = held.raw.closed or owner.closed or owner.invalidated
    return not gone and owner.in_transaction() and held.raw.info.transaction_status is not TransactionStatus.IDLE
