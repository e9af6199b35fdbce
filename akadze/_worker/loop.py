"""The loop of a worker: exchange, start what was claimed, sleep until something ends or arrives.

A cycle, not a job, is the unit: one exchange writes all outcomes that have gathered and claims for all free slots.
Batches form by themselves while the exchange before is under way, and an idle worker's single job is written at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Final
from uuid import UUID

from akadze import _verdict
from akadze._bodies import ended, judged, refused, run_body_async
from akadze._claimed import ID, NUMBER, TASK, ClaimedRow, ClaimedRun
from akadze._log import get_logger
from akadze._results import ResultNotJson
from akadze._sqlstates import is_data_error, is_memory_short, is_out_of_time, is_transient
from akadze._threads import BodyThreads
from akadze._worker.exchange import Exchange, Outcome
from akadze._worker.hooked import LostInHook
from akadze._worker.outage import Outage, Outages
from akadze._worker.slots import Slots
from akadze._worker.upkeep import Upkeep
from akadze._worker.wakeup import Wakeup
from akadze._worker.writer import MOST, Writer
from akadze.app import Akadze
from akadze.context import RUN

logger = get_logger("akadze.worker")

_SURVEY_EVERY: Final = 1.0  # seconds
#: Seconds after a survey within which a wake-up that brought nothing asks for no other.
_SOON: Final = 0.2
#: Full claims in a row after which the worker is under load and needs no notifications.
_LOAD: Final = 3
#: Characters of an outcome from which on it may be to blame when there is no memory to send it.
_BIG: Final = 1_000_000
#: Seconds that a cycle has at least: after the end of the lease, too, a second one on a new connection is possible.
_LEAST: Final = 0.5
#: Seconds between two looks of a worker whose lease is over.
_LOOK: Final = 0.1
#: Seconds before outcomes whose rows were locked are sent again.
_AGAIN: Final = 0.02


class Loop:
    """Claims, runs and finishes jobs until it is told to stop claiming and has written every outcome."""

    def __init__(
        self,
        app: Akadze,
        worker_id: UUID,
        *,
        exchange: Exchange,
        slots: Slots,
        writer: Writer,
        upkeep: Upkeep,
        wakeup: Wakeup | None,
        poll_interval: float,
        rescue_interval: float,
        lease_left: Callable[[], float],
        outages: Outages,
    ) -> None:
        self._app = app
        self._worker_id = worker_id
        self._exchange = exchange
        self._slots = slots
        self._writer = writer
        self._upkeep = upkeep
        self._wakeup = wakeup
        self._poll_interval = poll_interval
        self._rescue_interval = rescue_interval
        self._lease_left = lease_left
        self._outages = outages
        self._threads = BodyThreads("akadze-task")
        self._context = copy_context()
        self._wake = asyncio.Event()
        self.runs: dict[tuple[int, int], ClaimedRun] = {}
        #: No new claims from here on.
        self.stopping = False
        #: Nothing more will run: the loop ends when all outcomes are written.
        self.closing = False
        self._asleep = False
        self._woken = False
        self._full = 0
        #: What one exchange may carry, outcomes and claims together; MOST and above: whatever there is.
        self._portion = MOST
        self._tried = 0
        self._reconcile = False
        now = time.monotonic()
        self._next_survey = now
        self._next_rescue = now
        self._next_reconcile = now + rescue_interval
        self._next_due = float("inf")

    def wake(self) -> None:
        """Look at once: something ended, arrived, or has to stop."""
        self._wake.set()

    @property
    def in_threads(self) -> list[ClaimedRun]:
        """The runs whose plain functions go on, also those that were given up."""
        return self._threads.busy

    def close(self) -> None:
        self._threads.close()

    async def cycle(self) -> None:
        """Work until ``closing`` is set and nothing waits to be written; raise what is not transient."""
        outage = Outage(self._outages, "exchange")
        while True:
            self._wake.clear()
            try:
                patience, start = max(self._lease_left(), _LEAST), time.monotonic()
                async with asyncio.timeout(patience) as scope:
                    nothing = await self._step()
                outage.over()
                if self._portion < MOST and time.monotonic() - start < patience / 4:
                    self._portion *= 2
            except Exception as error:
                await self._exchange.give_up()
                if not is_transient(error):
                    raise
                if scope.expired() or isinstance(error, LostInHook) or is_out_of_time(error):
                    # Perhaps it was too much for one exchange: large results, or hooks that take their time.
                    self._portion = max(self._tried // 2, 1)
                self._reconcile = True
                self._asleep = False
                await outage.wait(error)
                continue
            if self.closing and not self._writer:
                return
            if nothing:
                await self._sleep()

    async def _step(self) -> bool:
        """Do one cycle; tell whether there is nothing to do until something ends, arrives or is due."""
        now = time.monotonic()
        if self._reconcile or (now >= self._next_reconcile and not self.stopping):
            await self._look_for_lost_answers()
            self._next_reconcile = now + 2 * self._rescue_interval
            if self._reconcile:
                return True
        if not self.stopping and now >= self._next_survey and not self._claim_first(now):
            due = await self._look_ahead(now)
            if not due and not self._writer and (self._asleep or not self._listening):
                return True
        outcomes = self._writer.take(self._portion)
        free = self._claimable(len(outcomes))
        self._tried = len(outcomes) + sum(free.values())
        if not outcomes and not free:
            return True
        if self._asleep:
            # Its notification may have come while no slot was free, and nothing else tells of a job that was committed
            # late and stands before the place that is known.
            self._exchange.forget()
        try:
            answer = await self._exchange.exchange(outcomes, free)
        except Exception as error:
            if not outcomes or not (is_data_error(error) or is_memory_short(error)):
                raise
            await self._find_refused_value(outcomes)
            return False
        missing = self._writer.settle(outcomes, answer.written, answer.refused)
        if self.stopping:
            # The claim was under way when the stop came.
            self._writer.hand_back((row[ID], row[NUMBER]) for row in answer.rows)
        else:
            for row in answer.rows:
                self._start(row)
        if missing:
            await self._ask_again(missing)
        if answer.rows:
            # Bodies that end at once have their outcomes ready for the next cycle. Sending the exchange first, so that
            # they run while it is answered, was measured: half as many jobs per commit cost more than the overlap gave.
            await asyncio.sleep(0)
        return await self._settle_down(free, len(answer.rows), again=answer.again)

    def _claimable(self, writing: int) -> dict[str, int]:
        """Return how many jobs of each queue to claim in an exchange that writes so many outcomes."""
        # Others would take back what it claims after its lease.
        free = {} if self.stopping or self._lease_is_over else self._slots.free()
        if self._portion >= MOST:
            return free
        claimable, room = {}, self._portion - writing
        for queue in random.sample([*free], len(free)):
            if room > 0:
                claimable[queue] = min(free[queue], room)
                room -= claimable[queue]
        return claimable

    async def _settle_down(self, free: dict[str, int], claimed: int, *, again: bool) -> bool:
        wanted = sum(free.values())
        if again or self._writer or self._wake.is_set():
            return False
        if not wanted:
            return True
        if claimed == wanted:
            self._full += 1
            if self._asleep and self._full >= _LOAD:
                await self._exchange.set_sleeping(False)
                self._asleep = False
            return not self._slots.free()
        self._full = 0
        if self._woken and not claimed and time.monotonic() > self._next_survey - _SURVEY_EVERY + _SOON:
            # Something arrived that this kind of claim does not see: a limit, an unknown task, another worker's job.
            self._next_survey = 0.0
            self._woken = False
            return False
        if self._listening and not self._asleep:
            # Enqueue notifies from here on; what was committed before is found by one more claim.
            await self._exchange.set_sleeping(True)
            self._asleep = True
            self._exchange.forget()
            return False
        return True

    @property
    def _lease_is_over(self) -> bool:
        """The process was frozen, or something has blocked its loop. It stops any moment, unless a late beat comes."""
        return self._lease_left() <= 0

    @property
    def _listening(self) -> bool:
        return self._wakeup is not None and self._wakeup.works

    def _claim_first(self, now: float) -> bool:
        """Tell whether the survey can wait: something has just arrived, and the last survey is not too old."""
        return self._woken and now < self._next_survey + _SURVEY_EVERY

    def row_rewritten(self) -> None:
        """The worker's row is a new one: it does not say that this worker sleeps."""
        self._asleep = False
        self._wake.set()

    async def _sleep(self) -> None:
        self._woken = False
        if self.stopping:
            if not self._wake.is_set():
                await self._wake.wait()
            return
        # Not always the whole interval, so that idle workers do not poll in step.
        pause = self._poll_interval * random.uniform(0.75, 1)  # noqa: S311 - jitter, no secret
        pause = min(pause, max(self._next_due - time.monotonic(), 0))
        if self._lease_is_over:
            pause = min(pause, _LOOK)
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
            self._woken = True
        except TimeoutError:
            # Polling looks at the whole line, and first whether a claim is worth while.
            self._next_survey = 0.0
            self._next_due = float("inf")

    async def _look_ahead(self, now: float) -> bool:
        survey = await self._exchange.survey()
        self._next_survey = now + _SURVEY_EVERY
        if survey.next_in is not None:
            self._next_due = min(self._next_due, time.monotonic() + max(survey.next_in, 0))
        lost = False
        # Those whose lease is over may have been frozen together, and are about to hand their jobs back.
        if now >= self._next_rescue and not self._lease_is_over:
            lost = await self._exchange.find_lost()
            self._next_rescue = now + self._rescue_interval
        self._upkeep.tell(lost=lost, doomed=survey.doomed, unknown=survey.unknown)
        return survey.due

    async def _look_for_lost_answers(self) -> None:
        """Hand back what the table says this worker runs and it does not know: the answer to a claim was lost."""
        known = {*self.runs}  # one of these may end in its complete_tx while the table is read
        for key in await self._exchange.runs_of_worker():
            if key not in known and not self._writer.knows(key):
                logger.warning("job %s was claimed in an answer that was lost: it is handed back", key[0])
                self._writer.hand_back([key])
        if self._reconcile:
            # Without its row, which the heartbeat writes again, what this worker claims would be taken back at once.
            # What has ended waits for the next claim, too: it may be of a job whose claim the server has lost.
            self._reconcile = not self.stopping and not await self._exchange.is_registered()

    async def _ask_again(self, missing: list[tuple[int, int]]) -> None:
        owned = await self._exchange.owned(missing)
        self._writer.drop(key for key in missing if key not in owned)
        if owned:
            await asyncio.sleep(_AGAIN)

    async def _find_refused_value(self, outcomes: list[Outcome]) -> None:
        """Write the outcomes one by one; the one that the database refuses becomes an error of its run."""
        missing = []
        await self._exchange.give_up()
        for outcome in outcomes:
            try:
                answer = await self._exchange.exchange([outcome], {})
            except Exception as error:
                await self._exchange.give_up()
                run = self._writer.run_of(outcome)
                short = is_memory_short(error) and len(outcome[2]) > _BIG
                if run is None or not (short or is_data_error(error)):
                    raise
                if short:
                    move = judged(run, ResultNotJson("there is no memory to send the result"))
                else:
                    move = refused(run, outcome[2])
                self._writer.replace(outcome, move)
            else:
                missing += self._writer.settle([outcome], answer.written, answer.refused)
        if missing:
            await self._ask_again(missing)

    def _start(self, row: ClaimedRow) -> None:
        if row[TASK] not in self._app.tasks:
            raise RuntimeError(f"the claim brought job {row[0]} of a task that is not registered")
        key = (row[ID], row[NUMBER])
        if (key in self.runs or self._writer.waits(key)) and self._is_under_way(key, row):
            return
        run = ClaimedRun(self._app, self._worker_id, row)
        self._slots.take(run.queue)
        self.runs[key] = run
        context = self._context.copy()
        context.run(RUN.set, run)
        task = asyncio.get_running_loop().create_task(self._run(run), context=context)
        # An eager task, where the application's loop makes such, may have ended by now.
        run.running = None if task.done() else task

    def _is_under_way(self, key: tuple[int, int], row: ClaimedRow) -> bool:
        """Tell whether this worker runs, or has run, what it has just claimed with the same number.

        The server has lost the first claim in a failover. The run goes on and writes its outcome for the new claim; if
        the row is of another job, which has got the id of a lost one, it is the earlier run that writes nothing.
        """
        earlier = self.runs.get(key) or self._writer.run_that_waits(key)
        if earlier is None or earlier.is_of(row):
            logger.warning("job %s was claimed again: the database had lost the claim of run %s", *key)
            return True
        logger.warning("job %s is another one now: the database had lost the first, whose run is given up", key[0])
        self._writer.drop([key])
        if self.runs.pop(key, None) is not None:
            earlier.disown()
            self.runs[(earlier.id, earlier.number)] = earlier
        return False

    async def _run(self, run: ClaimedRun) -> None:
        try:
            if self._lease_is_over:  # since the claim: others may run it by now
                move: _verdict.Move | None = _verdict.HAND_BACK
            else:
                move = await run_body_async(run, self._threads, lambda: run.taken_back)
        except GeneratorExit as error:
            if run.running is not None and not _is_current(run.running):
                raise  # it did not stop when it was cancelled, was handed back, and now the loop is gone
            move = ended(run, error, lambda: run.taken_back)
        except BaseException:  # a fault of this house: the job goes back rather than be forgotten
            logger.exception("job %s: its run broke off", run.id)
            move = _verdict.HAND_BACK
        # The task's context leads to the run: a circle would wait for the garbage collector, job after job.
        run.running = None
        self._slots.give(run.queue)
        if self.runs.pop((run.id, run.number), None) is not None and move is not None:
            self._writer.add(run, move)
            if move.delay is not None:
                self._next_due = min(self._next_due, time.monotonic() + move.delay)
        self._wake.set()


def _is_current(task: asyncio.Task[None] | None) -> bool:
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:  # no loop runs
        return False
