"""Random sequences of everything that may happen to jobs, on the real tables and in the model beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from akadze import Cancel, DuplicateJob, Fail, Retry, Snooze, _verdict
from tests.faults.job_model import FINAL, KNOWN, Ending, Model, ModelJob
from tests.faults.job_tables import ASYNC, QUEUES, SYNC, TTL, Tables

COLOURS = st.sampled_from([SYNC, ASYNC])
WORKERS = st.integers(0, 2)
KEYS = st.sampled_from(["a", "b"])
#: Which of the jobs or runs there are; small numbers are the newest.
ANY = st.integers(0, 11)
FIRST = st.integers(0, 3) | ANY
# Times lie half a step from those that `advance` reaches, so that no reading of the clock is a close one.
DELAYS = st.sampled_from([0.0, 0.0, 0.0, -1050.0, 1050.0, 3050.0])
EXPIRIES = st.sampled_from([None, None, None, 550.0, 2550.0])
PRIORITIES = st.sampled_from([0, 0, 1, -1])
ENDINGS = st.builds(
    Ending,
    st.sampled_from(["success", "error", "retry", "snooze", "fail", "fail", "cancel", "hand_back", "hand_back"]),
    st.sampled_from([0.0, 1050.0]),
)
EXCHANGES = st.fixed_dictionaries(
    {
        "default": st.sampled_from([2, 1, 3, 0]),
        "other": st.sampled_from([0, 0, 1, 2]),
        "endings": st.lists(st.tuples(ANY, ENDINGS), max_size=3, unique_by=lambda pair: pair[0]),
        "look": st.sampled_from([True, True, True, False]),
        "refused": st.sampled_from([[], [], [0], [2, 1]]),
    }
)
JOBS = st.fixed_dictionaries(
    {
        "colour": COLOURS,
        "task": st.sampled_from(["work", "work", "also", "side", "foreign"]),
        "priority": PRIORITIES,
        "max_attempts": st.sampled_from([1, 2, 3, 13]),
        "delay": DELAYS,
        "expires": EXPIRIES,
        "unique": st.sampled_from([None, None, "u", "v"]),
        "limit": st.sampled_from([None, "a", "b"]),
    }
)
_SLACK = 0.002  # of comparisons of instants, in seconds


def step(*, times: int = 2, **arguments: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Make a method a step of the machine, which comes so many times as often as another."""

    def mark(method: Any) -> Any:
        method.step = times, arguments
        return method

    return mark


def outcome(job_id: int, run: int, ending: Ending, row: tuple[Any, ...]) -> tuple[int, int, str]:
    """What a worker sends for a run that ended so; the row is that of its claim."""
    delay = timedelta(seconds=ending.delay)
    error = {
        "error": RuntimeError("no"), "retry": Retry(delay), "snooze": Snooze(delay), "fail": Fail("no"),
        "cancel": Cancel("no"),
    }.get(ending.kind)  # fmt: skip
    if ending.kind == "success":
        move = _verdict.returned(json.dumps({"run": run}))
    elif error is None:
        move = _verdict.HAND_BACK
    else:
        move = _verdict.raised(
            error,
            attempt=row[7],
            max_attempts=row[8],
            snoozes=row[9],
            backoff=lambda attempt: delay,
            now=datetime.now(UTC),
            random=1.0,
        )
    return job_id, run, move.outcome(job_id, run)


class JobMachine(RuleBasedStateMachine):
    """What every step shares; the rules are in `job_rules`."""

    tables: Tables

    def __init__(self) -> None:
        super().__init__()
        self.tables.clear()
        self.model = Model()
        #: Every run that a claim began: number of the worker, row of the claim.
        self.claims: list[tuple[int, tuple[Any, ...]]] = []
        self.effects: list[tuple[int, int]] = []
        for owner in self.tables.owners:
            self.model.leases[owner] = self.tables.now() + TTL

    def job(self, which: int) -> ModelJob:
        jobs = [*self.model.jobs.values()][::-1]
        return jobs[which % len(jobs)]

    def late_claims(self) -> list[tuple[int, tuple[Any, ...]]]:
        """Those of jobs that have been claimed again since."""
        return [claim for claim in self.claims if claim[1][6] < self.model.jobs[claim[1][0]].run_count]

    def adopt(self, job: ModelJob, low: float, high: float) -> None:
        """Take a run_at over from the table that lies between two instants."""
        row = self.tables.jobs()[job.id]
        assert low - _SLACK <= row["run_at"] <= high + _SLACK, (job, row)
        job.run_at = row["run_at"]

    def put_off(self, job: ModelJob, low: float, high: float) -> None:
        """Check a run_at that chance has chosen, and choose another."""
        self.adopt(job, low, high)
        self.tables.put_off(job.id, 50.0)
        now = self.tables.now()
        self.adopt(job, now + 49.0, now + 50.0)

    def finish(self, worker: int, row: tuple[Any, ...], ending: Ending, before: float) -> bool:
        """Write an ending into the model after it was written into the tables."""
        written = self.model.finish((row[0], row[6]), self.tables.owners[worker], ending, before)
        job = self.model.jobs[row[0]]
        if written and job.state == "queued" and ending.kind != "hand_back":
            self.adopt(job, before + ending.delay, self.tables.now() + ending.delay)
        return written

    def claimed(self, worker: int, rows: list[tuple[Any, ...]], slots: dict[str, int], now: float) -> None:
        """Start in the model what a claim has brought."""
        table = self.tables.jobs()
        owner = self.tables.owners[worker]
        self.model.claim({row[0]: table[row[0]]["started_at"] for row in rows}, owner, slots, now)
        for row in rows:
            assert row[6] == self.model.jobs[row[0]].run_count
            self.claims.append((worker, row))

    @invariant()
    def table_and_model_agree(self) -> None:
        table = self.tables.jobs()
        assert table.keys() == self.model.jobs.keys()
        for job in self.model.jobs.values():
            row = table[job.id]
            for name in (
                "task", "queue", "priority", "max_attempts", "unique_key", "limit_key", "state", "attempt", "run_count",
                "snoozes", "owner", "errors", "cancel", "expired", "result",
            ):  # fmt: skip
                assert row[name] == getattr(job, name), f"{name} is {row[name]!r}, and should be {getattr(job, name)!r}"
            assert abs(row["run_at"] - job.run_at) < _SLACK, (row, job)
            assert (row["expires_at"] is None) == (job.expires_at is None)
            assert row["finished"] == (row["state"] in FINAL)
        now = self.tables.now()
        for key, limit in self.model.limits.items():
            if limit.window is not None:
                counted = self.tables.starts(key, now - limit.window)
                assert counted == self.model.starts_in_window(key, now), f"limit {key} has counted {counted} starts"
        assert sorted(self.tables.effects()) == sorted(self.effects)
        self.counters_add_up(table)

    def counters_add_up(self, table: dict[int, dict[str, Any]]) -> None:
        """What holds whatever the model says."""
        keys = Counter(row["unique_key"] for row in table.values() if row["state"] in {"queued", "running"})
        assert all(count == 1 for key, count in keys.items() if key is not None), keys
        for row in table.values():
            assert 0 <= row["attempt"] + row["snoozes"] <= row["run_count"] - (row["state"] == "running"), row
            assert row["attempt"] <= row["max_attempts"], row
            assert (row["owner"] is None) == (row["state"] != "running"), row
            assert row["state"] != "queued" or row["attempt"] < row["max_attempts"], row
            assert row["state"] != "failed" or row["attempt"] > 0, row
            assert not (row["cancel"] and row["state"] == "failed"), row
            assert len(row["errors"]) <= 10, row
            assert not row["expired"] or row["state"] == "cancelled", row
        assert len({effect[0] for effect in self.effects}) == len(self.effects)

    # The ways in and out

    @initialize(
        plain=st.integers(1, 5), limited=st.integers(0, 3), doomed=st.integers(0, 2), bad=st.sampled_from([1, 3])
    )
    def begin(self, plain: int, limited: int, doomed: int, bad: int) -> None:
        """Some jobs are there from the start."""
        job: dict[str, Any] = {"colour": SYNC, "task": "work", "priority": 0, "delay": 0.0, "unique": None}
        self.enqueue(**job, max_attempts=bad, expires=None, limit=None, count=plain)
        self.enqueue(**job, max_attempts=3, expires=None, limit="a", count=limited)
        self.enqueue(**job, max_attempts=bad, expires=550.0, limit=None, count=doomed)

    @step(times=10, job=JOBS, commit=st.sampled_from([True, True, True, False]))
    def enqueue_one(self, job: dict[str, Any], commit: bool) -> None:
        self.enqueue(**job, count=1, commit=commit)

    @step(times=4, job=JOBS, count=st.sampled_from([4, 3, 2, 0]))
    def enqueue_many(self, job: dict[str, Any], count: int) -> None:
        self.enqueue(**{**job, "unique": None}, count=count)

    def enqueue(
        self,
        colour: str,
        task: str,
        priority: int,
        max_attempts: int,
        delay: float,
        expires: float | None,
        unique: str | None,
        limit: str | None,
        *,
        count: int,
        commit: bool = True,
    ) -> None:
        holder = self.model.holder(unique)
        if holder is not None and holder.id in self.model.held:
            return  # it would wait
        app = self.tables.strangers_app if task == "foreign" else self.tables.app
        before = self.tables.now()
        expires_at = None if expires is None else datetime.now(UTC) + timedelta(seconds=expires)
        options: dict[str, Any] = {
            "priority": priority, "max_attempts": max_attempts, "unique_key": unique, "limit_key": limit,
            "expires_at": expires_at,
        }  # fmt: skip
        if delay < 0:
            options["run_at"] = datetime.now(UTC) + timedelta(seconds=delay)
        else:
            options["delay"] = timedelta(seconds=delay)

        async def on_async(session: Any) -> None:
            bound = app.tasks[task].using(session=session, **options)
            await (bound.enqueue() if count == 1 else bound.enqueue_many([{}] * count))

        def on_sync(session: Any) -> None:
            bound = app.tasks[task].using(session=session, **options)
            _ = bound.enqueue() if count == 1 else bound.enqueue_many([{}] * count)

        taken = False
        try:
            self.tables.call(colour, (on_async, on_sync), commit=commit)
        except DuplicateJob:
            taken = True
        live = holder is not None and not holder.doomed(before)
        assert taken == live, f"{unique} is held by {holder}"
        new = sorted(self.tables.jobs().keys() - self.model.jobs.keys())
        assert len(new) == (count if commit and not taken else 0)
        if holder is not None and new:
            holder.end_queued()
        for job_id in new:
            job = ModelJob(
                id=job_id, task=task, queue="other" if task == "side" else "default", priority=priority,
                max_attempts=max_attempts, run_at=0.0, unique_key=unique, limit_key=limit,
                expires_at=None if expires is None else before + expires,
            )  # fmt: skip
            self.model.jobs[job_id] = job
            self.adopt(job, before + delay, self.tables.now() + delay)

    @step(times=6, exchanging=EXCHANGES)
    def exchange_plainly(self, exchanging: dict[str, Any]) -> None:
        self.exchange(0, **exchanging)

    @step(times=6, exchanging=EXCHANGES)
    def exchange_fairly(self, exchanging: dict[str, Any]) -> None:
        self.exchange(1, **exchanging)

    @step(times=6, exchanging=EXCHANGES)
    def exchange_with_hooks(self, exchanging: dict[str, Any]) -> None:
        self.exchange(2, **exchanging)

    def exchange(
        self, worker: int, default: int, other: int, endings: list[tuple[int, Ending]], look: bool, refused: list[int]
    ) -> None:
        """Write outcomes, of lost runs too, and claim, as a worker does; the third one's hook may refuse."""
        exchange = self.tables.workers[worker]
        runs = [row for number, row in self.claims[::-1] if number == worker]
        ended = {(row[0], row[6]): (row, how) for which, how in endings for row in runs[which : which + 1]}
        outcomes = [outcome(row[0], row[6], how, row) for row, how in ended.values()]
        free = {queue: slots for queue, slots in zip(QUEUES, (default, other), strict=True) if slots}
        if look:
            self.survey(worker)
        self.tables.refused = {self.job(which).id for which in refused if worker == 2 and self.model.jobs}
        self.tables.told.clear()
        limited, before = exchange._stepping, self.tables.now()
        candidates = [job.id for job in self.model.jobs.values() if self.model.startable(job, before)]
        answer = self.tables.run(exchange.exchange(outcomes, free))
        told = Counter(self.tables.told)

        stuck = {
            run for run in ended
            if run[0] in self.tables.refused - self.model.held and self.model.owns(run, self.tables.owners[worker])
        }  # fmt: skip
        written = {
            run for run, (row, how) in ended.items() if run not in stuck and self.finish(worker, row, how, before)
        }
        assert (answer.written, set(answer.refused)) == (written, stuck)
        moves = Counter((run[0], "running", self.model.jobs[run[0]].state) for run in written)
        now = self.tables.now()
        if not limited:
            candidates = [job.id for job in self.model.jobs.values() if self.model.startable(job, now)]
        table = self.tables.jobs()
        for job_id in self.tables.refused & set(candidates):
            if table[job_id]["run_at"] != self.model.jobs[job_id].run_at:
                self.put_off(self.model.jobs[job_id], before + 1, now + 1)
        exact = look and len(free) == 1 and not self.tables.refused and len(written) == len(ended) and not answer.again
        if exact and not any(self.model.jobs[job_id].state == "queued" for job_id in self.model.held):
            [(queue, slots)] = free.items()
            expected = self.model.picks(candidates, queue, slots, limited=limited, fair=worker == 1, now=now)
            assert [row[0] for row in answer.rows] == expected
        if worker != 1:
            for queue in free:
                line = [(-row[3], row[10], row[0]) for row in answer.rows if row[2] == queue]
                assert line == sorted(line), "the claim is not in the order of the line"
        assert {row[0] for row in answer.rows} <= set(candidates)
        self.claimed(worker, answer.rows, free, now)
        if worker == 2:
            moves += Counter((row[0], "queued", "running") for row in answer.rows)
            assert not moves - told, f"the hook was not told of {moves - told}"
            assert self.tables.refused or moves == told
        else:
            assert not told
        self.tables.refused = set()

    def survey(self, worker: int) -> None:
        """Look ahead, and check what was seen."""
        seen = self.tables.run(self.tables.workers[worker].survey())
        now = self.tables.now()
        queued = [job for job in self.model.jobs.values() if job.state == "queued"]
        assert seen.limited == bool(self.model.limits)
        assert seen.due == any(job.run_at <= now for job in queued)
        assert seen.doomed == any(job.doomed(now) for job in queued)
        assert seen.unknown == any(job.task not in KNOWN and job.limit_key is None for job in queued)
        later = min((job.run_at - now for job in queued if job.run_at > now), default=None)
        assert (seen.next_in is None) == (later is None)
        assert later is None or abs(seen.next_in - later) < 5
