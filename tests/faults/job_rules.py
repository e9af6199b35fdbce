"""The other steps: late endings, cancels, rescues, requeues, limits, pauses, rows that are held, time that passes."""

from __future__ import annotations

from datetime import timedelta
from types import NoneType
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import rule

from akadze import AkadzeError, clear_limit, pause_queue, request_cancel, requeue, resume_queue, set_limit, sync
from akadze import _rows as rows_of
from akadze._async import transitions as async_transitions
from akadze._claimed import ClaimedRun
from akadze._connections import sync_caller
from akadze._statement import statement
from akadze._sync import transitions as sync_transitions
from akadze.context import Context, SyncContext
from akadze.errors import RunLost
from akadze.sync.testing import drain
from tests.faults.job_machine import ANY, COLOURS, ENDINGS, FIRST, KEYS, WORKERS, JobMachine, outcome, step
from tests.faults.job_model import KNOWN, Ending, Limit
from tests.faults.job_tables import ASYNC, QUEUES, TTL

_LOCK_LIMITS = statement("drain", "lock_limits")
_CLAIM_READY = statement("drain", "claim_ready")


class JobSteps(JobMachine):
    @step(worker=WORKERS)
    def claim_as_drain_does(self, worker: int) -> None:
        """One job, of any queue."""
        before = self.tables.now()
        with self.tables.sync.transaction():
            caller = sync_caller(self.tables.sync)
            caller.rows(_LOCK_LIMITS)
            found = caller.rows(_CLAIM_READY, tasks=sorted(KNOWN), worker=str(self.tables.owners[worker]), put_off=[])
        full = {key for key in self.model.limits if (room := self.model.room(key, before)) is not None and room <= 0}
        ready = [
            job for job in self.model.jobs.values() if self.model.startable(job, before) and job.limit_key not in full
        ]
        best = sorted(ready, key=lambda job: (-job.priority, job.run_at, job.id))[:1]
        claims = [rows_of.claimed(row) for row in found]
        assert [row[0] for row in claims] == [job.id for job in best]
        self.claimed(worker, claims, dict.fromkeys(QUEUES, 1), before)

    @step(
        colour=COLOURS,
        worker=WORKERS,
        endings=st.lists(
            st.tuples(st.integers(0, 3) | ANY, ENDINGS), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
        ),
        own=st.booleans(),
        hooked=st.booleans(),
    )
    def finish_late_or_for_others(
        self, colour: str, worker: int, endings: list[tuple[int, Ending]], own: bool, hooked: bool
    ) -> None:
        """Write outcomes of whatever runs there were in the name of one worker, or of one that comes too late."""
        if not self.claims:
            return
        runs = ((own and self.late_claims()) or self.claims)[::-1]
        if own:
            worker = runs[0][0]
        chosen = {(row[0], row[6]): (row, how) for which, how in endings for _, row in runs[which : which + 1]}
        outcomes = [outcome(row[0], row[6], how, row) for row, how in chosen.values()]
        before = self.tables.now()
        self.tables.told.clear()
        written, refused = self.tables.call(
            colour,
            (async_transitions.finish, sync_transitions.finish),
            self.tables.hooks(hooked),
            self.tables.owners[worker],
            outcomes,
            adapt=True,
        )
        expected = [run for run, (row, how) in chosen.items() if self.finish(worker, row, how, before)]
        assert (sorted(written), refused) == (sorted(expected), [])
        told = [(job_id, "running", self.model.jobs[job_id].state) for job_id, _ in expected]
        assert sorted(self.tables.told) == (sorted(told) if hooked else [])

    @step(colour=COLOURS, which=FIRST, late=st.booleans(), fails=st.sampled_from([False, False, True]))
    def complete(self, colour: str, which: int, late: bool, fails: bool) -> None:
        """End a run, perhaps a lost one, by complete_tx; its effect is there if, and only if, the run owned its job."""
        if not self.claims:
            return
        claims = ((late and self.late_claims()) or self.claims)[::-1]
        worker, row = claims[which % len(claims)]
        if row[0] in self.model.held:
            return  # it would wait
        run = ClaimedRun(self.tables.app, self.tables.owners[worker], row)
        effect = "insert into public.effects values (%s, %s)", (row[0], row[6])

        async def completed() -> None:
            async with Context(run).complete_tx() as connection:
                await connection.exec_driver_sql(*effect)
                if fails:
                    raise ValueError

        raised: Exception | None = None
        try:
            if colour == ASYNC:
                self.tables.run(completed())
            else:
                with SyncContext(run).complete_tx() as connection:
                    connection.exec_driver_sql(*effect)
                    if fails:
                        raise ValueError
        except (RunLost, ValueError) as error:
            raised = error
        owned = not fails and self.model.complete((row[0], row[6]), self.tables.owners[worker])
        assert type(raised) is (ValueError if fails else NoneType if owned else RunLost)
        assert run.completed == owned
        if owned:
            self.effects.append((row[0], row[6]))

    @step(colour=COLOURS, which=ANY, commit=st.booleans())
    def ask_to_cancel(self, colour: str, which: int, commit: bool) -> None:
        if not self.model.jobs:
            return
        job = self.job(which)
        if job.id in self.model.held:
            return
        self.tables.call(colour, (request_cancel, sync.request_cancel), job.id, commit=commit)
        if job.active and commit:
            job.cancel = True

    @step(times=5, colour=COLOURS, which=ANY)
    def put_back(self, colour: str, which: int) -> None:
        """Requeue, which only a failed job allows whose unique key is free."""
        if not self.model.jobs:
            return
        failed = [job for job in self.model.jobs.values() if job.state == "failed"]
        job = failed[which % len(failed)] if failed else self.job(which)
        holder = self.model.holder(job.unique_key)
        if {job.id, holder and holder.id} & self.model.held:
            return
        before = self.tables.now()
        done = True
        try:
            self.tables.call(colour, (requeue, sync.requeue), job.id)
        except AkadzeError:
            done = False
        assert done == self.model.requeue(job, before)
        if done:
            self.adopt(job, before, self.tables.now())

    @step(colour=COLOURS, hooked=st.booleans(), by=st.sampled_from([None, 0, 1]))
    def rescue(self, colour: str, hooked: bool, by: int | None) -> None:
        """Take back lost jobs, as a worker, which leaves its own alone, or as nobody."""
        before = self.tables.now()
        rescuer = None if by is None else self.tables.owners[by]
        lost = [job for job in self.model.lost(before) if rescuer is None or job.owner != rescuer]
        self.tables.told.clear()
        assert self.tables.run(self.tables.workers[0].find_lost()) == any(
            job.state == "running"
            and job.owner != self.tables.owners[0]
            and self.model.leases.get(job.owner, -1.0) <= before  # type: ignore[arg-type] # running
            for job in self.model.jobs.values()
        )
        moved = self.tables.call(
            colour,
            (async_transitions.rescue, sync_transitions.rescue),
            self.tables.hooks(hooked),
            adapt=True,
            rescuer=rescuer,
        )
        assert sorted((row["id"], row["worker_id"]) for row in moved) == sorted(
            (job.id, str(job.owner)) for job in lost
        )
        after = self.tables.now()
        for job in lost:
            self.model.rescue(job)
            if job.state == "queued":
                longest = min(300.0, 2.0 ** (job.attempt - 1))
                self.put_off(job, before + longest / 2, after + longest)
        told = [(job.id, "running", job.state) for job in lost]
        assert sorted(self.tables.told) == (sorted(told) if hooked else [])

    @step(
        colour=COLOURS,
        queues=st.sampled_from([None, ["default"], ["other"], [*QUEUES]]),
        hooked=st.booleans(),
    )
    def cancel_doomed(self, colour: str, queues: list[str] | None, hooked: bool) -> None:
        doomed = self.model.doomed(queues, self.tables.now())
        self.tables.told.clear()
        moved = self.tables.call(
            colour,
            (async_transitions.cancel_doomed, sync_transitions.cancel_doomed),
            self.tables.hooks(hooked),
            queues,
            adapt=True,
        )
        assert sorted(row["id"] for row in moved) == sorted(job.id for job in doomed)
        for job in doomed:
            job.end_queued()
        assert sorted(self.tables.told) == ([(job.id, "queued", "cancelled") for job in doomed] if hooked else [])

    @step(
        colour=COLOURS,
        key=KEYS,
        most=st.sampled_from([None, 0, 1, 2, 2, 3]),
        starts=st.sampled_from([None, None, None, 0, 1, 3]),
        commit=st.sampled_from([True, True, False]),
    )
    def limit(self, colour: str, key: str, most: int | None, starts: int | None, commit: bool) -> None:
        if most is None and starts is None:
            return
        window = None if starts is None else 1550.0
        named: dict[str, Any] = {"max_starts": starts, "window": None if window is None else timedelta(seconds=window)}
        self.tables.call(colour, (set_limit, sync.set_limit), key, most, commit=commit, **named)
        if commit:
            old = self.model.limits.get(key, Limit())
            self.model.limits[key] = Limit(
                old.max_running if most is None else most,
                old.max_starts if starts is None else starts,
                old.window if window is None else window,
            )

    @step(times=3, colour=COLOURS, key=KEYS)
    def unlimit(self, colour: str, key: str) -> None:
        self.tables.call(colour, (clear_limit, sync.clear_limit), key)
        self.model.limits.pop(key, None)
        self.model.starts.pop(key, None)

    @step(times=1, colour=COLOURS, queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, colour: str, queue: str) -> None:
        if queue in self.model.paused:
            self.tables.call(colour, (resume_queue, sync.resume_queue), queue)
            self.model.paused.discard(queue)
        else:
            self.tables.call(colour, (pause_queue, sync.pause_queue), queue)
            self.model.paused.add(queue)

    @step(times=4, seconds=st.sampled_from([100.0, 1000.0]), beating=st.sets(WORKERS))
    def let_time_pass(self, seconds: float, beating: set[int]) -> None:
        """Some workers beat after it; the others have lost their lease if it was long."""
        if self.model.held:
            return
        self.tables.advance(seconds)
        for number in beating:
            self.tables.beat(number)
            self.model.leases[self.tables.owners[number]] = self.tables.now() + TTL

    @step(worker=WORKERS)
    def forget_worker(self, worker: int) -> None:
        """Its row is gone; it may beat again."""
        self.tables.delete_worker(worker)
        self.model.leases.pop(self.tables.owners[worker], None)

    @step(which=ANY)
    def hold(self, which: int) -> None:
        """Somebody asks to cancel a job and does not commit yet: nothing waits for it."""
        if not (self.model.jobs and not self.model.held):
            return
        job = self.job(which)
        if not job.active:
            return
        sync.request_cancel(self.tables.holding, job.id)
        self.model.held = {job.id}

    @step(times=4, commit=st.booleans())
    def let_go(self, commit: bool) -> None:
        if not self.model.held:
            return
        if commit:
            self.tables.holding.commit()
            for job_id in self.model.held:
                self.model.jobs[job_id].cancel = True
        else:
            self.tables.holding.rollback()
        self.model.held = set()

    @step(times=1)
    def drain(self) -> None:
        """Run all that is ready in this process."""
        if not (self.model.jobs and not self.model.limits and not self.model.held):
            return
        now = self.tables.now()
        queued = [job for job in self.model.jobs.values() if job.state == "queued"]
        ready = [job for job in queued if job.queue not in self.model.paused and job.run_at <= now]
        if not all(job.task in KNOWN or job.doomed(now) for job in ready):
            return
        drain(self.tables.app)
        for job in self.model.doomed(None, now):
            job.end_queued()
        for job in queued:
            if self.model.startable(job, now):
                job.run_count += 1
                job.state = "succeeded"


STEPS = st.one_of(
    [
        st.tuples(st.just(name), st.fixed_dictionaries(arguments))
        for name in sorted(dir(JobSteps))
        for times, arguments in [getattr(getattr(JobSteps, name), "step", (0, {}))]
        for _ in range(times)
    ]
)


class JobRules(JobSteps):
    """All steps are one rule, so that they come as often as they say, and together."""

    @rule(step=STEPS)
    def do(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)
