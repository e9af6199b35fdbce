"""One call of Worker.serve: starts the parts, watches them, and stops them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from akadze._async.schema import check_schema
from akadze._claimed import ClaimedRun
from akadze._connections import async_caller
from akadze._log import get_logger
from akadze._sqlstates import first_line, is_transient, sqlstate
from akadze._urls import without_password
from akadze._worker.connect import check_database
from akadze._worker.ending import end_tasks
from akadze._worker.exchange import Exchange
from akadze._worker.heartbeat import Heartbeat, LeaseLost
from akadze._worker.loop import Loop
from akadze._worker.outage import Outage, Outages
from akadze._worker.slots import Slots
from akadze._worker.upkeep import Upkeep
from akadze._worker.wakeup import Wakeup
from akadze._worker.writer import Writer
from akadze.app import Akadze
from akadze.errors import AkadzeError

logger = get_logger("akadze.worker")

#: Seconds that bodies have to end after they were cancelled.
_TO_END: Final = 1.0
#: Seconds until they are cancelled once more, where the lease has ended.
_TO_HEED: Final = 0.1
#: Seconds that the last outcomes may take, and the last statements after them.
_TO_WRITE: Final = 5.0
#: The same after the end of the lease, for outcomes only where plain functions go on in threads: others may run those
#: jobs by now, and nothing but the end of the process stops a thread.
_IN_HASTE: Final = 1.0
#: How many jobs a line of the log names.
_NAMED: Final = 20
#: Of a lease, what one call of an on_transition hook may take: the exchange without it has to fit in as well.
_HOOK_SHARE: Final = 1 / 3


class OutcomesLost(AkadzeError):
    """The worker has stopped, and the database did not take the last outcomes, or did not answer its last exchange."""


class Serving:
    """The parts of a running worker."""

    def __init__(
        self,
        app: Akadze,
        *,
        queues: Sequence[str],
        slots: int,
        heartbeat_interval: timedelta,
        heartbeat_ttl: timedelta,
        poll_interval: timedelta,
        shutdown_timeout: timedelta,
        fair: bool,
        notify: bool,
    ) -> None:
        self.id: UUID = uuid4()
        self._app = app
        self._queues = list(queues)
        self._shutdown_timeout = shutdown_timeout.total_seconds()
        self._hurry = asyncio.Event()
        self._stopping = asyncio.Event()
        self._to_write = _TO_WRITE
        self._outages = outages = Outages()
        hook_patience = heartbeat_ttl.total_seconds() * _HOOK_SHARE
        self._exchange = Exchange(app, self.id, queues, fair=fair, hook_patience=hook_patience)
        self._heartbeat = Heartbeat(
            app,
            self.id,
            queues,
            interval=heartbeat_interval,
            ttl=heartbeat_ttl,
            rewritten=lambda: self._loop.row_rewritten(),
            outages=outages,
        )
        self._upkeep = Upkeep(
            app, self.id, queues, outages, hook_patience=hook_patience, lease_left=lambda: self._heartbeat.left
        )
        self._writer = Writer()
        self._wakeup = Wakeup(app, self.id, queues, wake=self._wake, outages=outages) if notify else None
        self._loop = Loop(
            app,
            self.id,
            exchange=self._exchange,
            slots=Slots(queues, slots),
            writer=self._writer,
            upkeep=self._upkeep,
            wakeup=self._wakeup,
            poll_interval=poll_interval.total_seconds(),
            rescue_interval=heartbeat_interval.total_seconds(),
            lease_left=lambda: self._heartbeat.left,
            outages=outages,
        )

    def hurry(self) -> None:
        """Hand back what still runs at once, instead of waiting for it."""
        self._hurry.set()

    def _wake(self) -> None:
        self._loop.wake()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; raise what stopped the worker otherwise."""
        starting = asyncio.create_task(self._start(), name="akadze-start")
        parts: dict[asyncio.Task[Any], str] = {starting: "the start"}
        stopped = asyncio.create_task(stop.wait(), name="akadze-stop")
        try:
            await asyncio.wait([stopped, starting], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():  # nothing is claimed yet, and a database that hangs does not hold up the stop
                await self._break_off(starting)
                return
            starting.result()
            del parts[starting]
            cycle = asyncio.create_task(self._loop.cycle(), name="akadze-cycle")
            parts[cycle] = "the loop"
            parts[asyncio.create_task(self._heartbeat.keep(), name="akadze-heartbeat")] = "the heartbeat"
            parts[asyncio.create_task(self._upkeep.keep(self._stopping), name="akadze-upkeep")] = "upkeep"
            if self._wakeup is not None:
                parts[asyncio.create_task(self._wakeup.keep(), name="akadze-wakeup")] = "the wake-ups"
            cause = await self._watch(stopped, parts)
            stopped.cancel()
            await self._wind_up(cycle, parts, cause)
        finally:
            # Cancelled from outside, or failed at the start: nothing of this worker stays behind.
            await self._end([stopped, *parts])
            self._loop.close()
            for part in (self._exchange.give_up, self._heartbeat.close):
                await self._quietly(part())

    async def _start(self) -> None:
        outage = Outage(self._outages, "start")
        reached = False
        while True:
            try:
                held = await self._exchange.open()
                reached = True
                await check_database(self._app.engine, held)
                await check_schema(async_caller(held.raw))
                await self._heartbeat.register()
                break
            except Exception as error:
                # A first connection that fails is told at once: most often it is the URL that is wrong. An error with a
                # code is the server's answer on one that stands; while connecting there is none.
                reached = reached or sqlstate(error) is not None
                if not (reached and is_transient(error)):
                    raise
                await self._exchange.give_up()
                await self._heartbeat.close()
                await outage.wait(error)
        outage.over()
        logger.info("worker %s serves queues %s", self.id, ", ".join(map(repr, self._queues)))

    async def _break_off(self, starting: asyncio.Task[None]) -> None:
        await self._end([starting])
        await self._quietly(self._heartbeat.close())
        if self._heartbeat.registered:
            await self._quietly(self._heartbeat.unregister())

    async def _watch(self, stopped: asyncio.Task[Any], parts: dict[asyncio.Task[Any], str]) -> BaseException | None:
        """Return when the stop event is set, or the cause when a part has failed."""
        try:
            await asyncio.wait([stopped, *parts], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            return error
        return _failure(parts)

    async def _wind_up(
        self, cycle: asyncio.Task[None], parts: dict[asyncio.Task[Any], str], cause: BaseException | None
    ) -> None:
        self._loop.stopping = True
        self._stopping.set()
        self._loop.wake()
        if cause is None:
            logger.info("worker %s stops: %s jobs still run", self.id, len(self._loop.runs))
            cause = await self._wait_for_runs(parts)
        if cause is not None and not isinstance(cause, asyncio.CancelledError):
            logger.error("worker %s stops: %s", self.id, without_password(first_line(cause)))
        await self._take_back(at_once=isinstance(cause, LeaseLost))
        if isinstance(cause, LeaseLost) and self._loop.in_threads:
            logger.warning("worker %s: plain functions run on until the process ends", self.id)
            self._to_write = min(_IN_HASTE, _TO_WRITE)
        self._writer.hand_back([*self._writer.stuck])
        self._loop.closing = True
        self._loop.wake()
        if cycle.done():
            # The loop itself has failed: a fresh one writes what can still be written.
            cycle = asyncio.create_task(self._loop.cycle(), name="akadze-last-cycle")
        done, _ = await asyncio.wait([cycle], timeout=self._to_write)
        if not done or cycle.exception() is not None:
            lost = OutcomesLost(
                f"worker {self.id} could not write {len(self._writer)} outcomes: its jobs are taken back when its "
                "lease has ended"
                if self._writer
                else f"worker {self.id} did not get the answer to its last exchange with the database within "
                f"{self._to_write:g} s: what that has claimed, if anything, is taken back when its lease has ended"
            )
            if self._writer:
                logger.warning("%s", lost)
            await self._end([cycle])
            cause = cause or (cycle.exception() if done else None) or lost
        else:
            # A beat after this would write the row again.
            await self._end([part for part in parts if not part.done()])
            if isinstance(cause, LeaseLost):  # the row counts for nothing now, and beating it has failed
                self._to_write = min(_IN_HASTE, _TO_WRITE)
            await self._quietly(self._heartbeat.unregister(), cause)
        if cause is not None:
            raise cause

    async def _wait_for_runs(self, parts: dict[asyncio.Task[Any], str]) -> BaseException | None:
        """Wait for the running jobs, up to the shutdown timeout; return the cause if a part fails meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._shutdown_timeout
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            while self._loop.runs and not hurry.done() and loop.time() < deadline:
                running = [run.running for run in self._loop.runs.values() if run.running is not None]
                # Upkeep ends by itself at the stop signal; the others only by failing.
                watched = [part for part in parts if not part.done()]
                await asyncio.wait(
                    [hurry, *running, *watched],
                    timeout=max(deadline - loop.time(), 0),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                cause = _failure(parts)
                if cause is not None:
                    return cause
        except asyncio.CancelledError as error:
            return error
        finally:
            hurry.cancel()
        return None

    async def _take_back(self, *, at_once: bool) -> None:
        """Cancel the bodies that still run and give them a moment to end; name those that do not.

        ``at_once``: others may have their jobs any moment. Those that go on are cancelled again soon, which also ends
        one that waits in psycopg for a database that does not answer.
        """
        runs = [run for run in self._loop.runs.values() if run.running is not None]
        if runs:
            logger.info("worker %s takes back what still runs: %s", self.id, _ids(runs))
        for run in runs:
            run.taken_back = True
            if run.running is not None and not at_once:
                run.running.cancel()
        tasks = [run.running for run in runs if run.running is not None]
        if tasks and at_once:
            await end_tasks(tasks, patience=_TO_END, first=_TO_HEED)
        elif tasks:
            await asyncio.wait(tasks, timeout=_TO_END)
        for run in [*self._loop.runs.values()]:
            self._loop.runs.pop((run.id, run.number))
            self._writer.hand_back([(run.id, run.number)])
            if run.task.is_async and run.running is not None:
                logger.warning(
                    "job %s of task %s does not stop when it is cancelled: it is left behind", run.id, run.task.name
                )
                _let_go(run.running)
        for run in self._loop.in_threads:
            logger.warning(
                "job %s of task %s is a plain function, which cannot be stopped: it is left behind in its thread",
                run.id,
                run.task.name,
            )

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await end_tasks(tasks, patience=self._to_write, first=_TO_END)

    async def _quietly(self, last: Any, cause: BaseException | None = None) -> None:
        try:
            async with asyncio.timeout(self._to_write):
                await last
        except Exception as error:
            # What stopped the worker has been told, and often this fails for the same reason.
            if cause is None and not is_transient(error):
                logger.exception("worker %s: closing failed", self.id)


def _ids(runs: Sequence[ClaimedRun]) -> str:
    shown = ", ".join(str(run.id) for run in runs[:_NAMED])
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"{'job' if len(runs) == 1 else 'jobs'} {shown}{more}"


def _failure(parts: dict[asyncio.Task[Any], str]) -> BaseException | None:
    for part, name in parts.items():
        if part.done():
            # Nobody here has cancelled it: something that it called has raised CancelledError.
            error = RuntimeError(f"{name} of the worker broke off") if part.cancelled() else part.exception()
            if error is not None:
                logger.debug("%s failed", name)
                return error
    return None


def _let_go(task: asyncio.Task[Any]) -> None:
    """Leave a task that swallows its cancellation out of what asyncio.run waits for."""
    asyncio._unregister_task(task)  # noqa: SLF001 - documented for those who extend asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is known to be pending
