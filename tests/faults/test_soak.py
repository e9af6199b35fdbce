"""Contract, sections 3 to 10: a short soak, and the checker of soaks, which finds each promise broken in evidence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.families import FULL
from tests.processes import is_alive
from tests.servers import skip_without_programs

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(SCRIPTS)
    from soaking.checks import CHECKS, find_broken
    from soaking.evidence import Beat, Broken, Change, Effect, Evidence, Fire, Job, Policy
    from soaking.show import failures, summary

A, B = "worker a", "worker b"
NEW = (0.0, "queued", "")
T = 1_700_000_000.0  # a slot of tick


def line(what: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"what": what, "at": T + at, "pid": 1, **fields}


def moves(job_id: int, *steps: tuple[float, str, str], **fields: Any) -> list[Change]:
    """Changes of a job: time, state (perhaps "+attempt", "+snooze" or "+lost"), worker."""
    found: list[Change] = []
    for number, (at, told, worker) in enumerate(steps):
        state, _, used = told.partition(" +")
        last = found[-1] if found else Change(job_id, 0, None, None)
        starts = (last.new_state, state) == ("queued", "running")
        found.append(
            Change(
                job_id,
                T + at,
                last.new_state,
                state,
                run_count=last.run_count + starts,
                attempt=last.attempt + (used in {"attempt", "lost"}),
                snoozes=last.snoozes + (used == "snooze"),
                old_worker=last.new_worker,
                new_worker=worker or None,
                started_at=T + at if starts else last.started_at,
                run_at=fields.get("run_at", T),
                limit_key=fields.get("limit_key"),
                lost=used == "lost",
                seq=int(1000 * at) + number,
            )
        )
    return found


def runs(job_id: int, *bodies: tuple[int, float, float | None, str]) -> list[dict[str, Any]]:
    """Lines of bodies: run, begin, end, and how they ended; pid 10 + run."""
    found = []
    for run, begin, end, how in bodies:
        found.append(line("start", begin, job=job_id, run=run) | {"pid": 10 + run})
        if end is not None:
            found.append(line("end", end, job=job_id, run=run, how=how) | {"pid": 10 + run})
    return found


def sound() -> Evidence:
    """A little of everything, and every promise kept."""
    changes = [
        *moves(1, NEW, (1, "running", A), (2, "succeeded", "")),
        # Its worker dies, another takes it back.
        *moves(2, NEW, (1, "running", A), (9, "queued +lost", ""), (11, "running", B), (12, "succeeded", "")),
        *moves(
            3,
            (3, "queued", ""),
            (4, "running", B),
            (5, "queued +snooze", ""),
            (6, "running", B),
            (7, "failed +attempt", ""),
        ),
        *moves(4, NEW, (1, "running", B), (2, "succeeded", ""), limit_key="pair"),
        *moves(5, NEW, (2.5, "running", B), (4, "succeeded", ""), limit_key="pair"),
        *moves(6, (8, "queued", ""), (8.2, "running", B), (8.4, "succeeded", ""), run_at=T + 8),
    ]
    return Evidence(
        jobs=[
            Job(1, "quick", "succeeded", run_count=1, token="t1"),
            Job(2, "pay", "succeeded", run_count=2, attempt=1, token="t2"),
            Job(3, "flaky", "failed", run_count=2, attempt=1, snoozes=1, token="t3", errors=[{"error": "Fail"}]),
            Job(4, "quick", "succeeded", run_count=1, token="t4", limit_key="pair", unique_key="u"),
            Job(5, "quick", "succeeded", run_count=1, token="t5", limit_key="pair", expires_at=T + 3),
            Job(6, "tick", "succeeded", run_count=1),
        ],
        changes=changes,
        beats=[
            *(Beat(A, T + 0.5 * n, 5.0) for n in range(6)),
            *(Beat(B, T + 0.5 * n, 5.0) for n in range(80)),
        ],
        policies=[Policy("pair", T - 9, max_running=1), Policy("rated", T - 9, max_starts=1, seconds=5)],
        fires=[Fire("tick", T + 8, 6)],
        effects=[Effect(2, 2)],
        log=[
            line("committed", 0, tokens=["t1", "t2", "t4", "t5"]),
            line("unknown", 3, tokens=["t3", "t6"]),
            line("rolled back", 3, tokens=["t7"]),
            *runs(1, (1, 1, 2, "returned")),
            *runs(2, (1, 1, None, ""), (2, 11, 12, "returned")),
            *runs(3, (1, 4, 5, "Snooze"), (2, 6, 7, "Fail")),
            *runs(4, (1, 1, 2, "returned")),
            *runs(5, (1, 2.5, 4, "returned")),
            *runs(6, (1, 8.2, 8.4, "returned")),
            line("fault", 3, fault="kill", process=11),
            line("fault over", 3.1, fault="kill", process=11),
            line("exited", 3.1, name="worker", process=11, code=-9, why="asked", said=""),
            line("serving", -1),
            line("served", 17),
            # The second slot of tick, and those of the others, fall into this.
            line("fault", 8.5, fault="restart fast"),
            line("fault over", 17, fault="restart fast"),
            line("fault", -1, fault="swallow"),
            line("fault over", 7.9, fault="swallow"),
        ],
    )


def without(evidence: Evidence, **kept: Callable[[Any], bool]) -> Evidence:
    return replace(
        evidence, **{name: [one for one in getattr(evidence, name) if keep(one)] for name, keep in kept.items()}
    )


def also(evidence: Evidence, **more: list[Any]) -> Evidence:
    return replace(evidence, **{name: getattr(evidence, name) + added for name, added in more.items()})


def changed(evidence: Evidence, job_id: int, **fields: Any) -> Evidence:
    return replace(evidence, jobs=[replace(job, **fields) if job.id == job_id else job for job in evidence.jobs])


def moved(evidence: Evidence, job_id: int, *steps: tuple[float, str, str], **fields: Any) -> Evidence:
    """Another history of a job."""
    rest = [change for change in evidence.changes if change.job_id != job_id]
    return replace(evidence, changes=rest + moves(job_id, *steps, **fields))


def ran(evidence: Evidence, job_id: int, *bodies: tuple[int, float, float | None, str]) -> Evidence:
    rest = [one for one in evidence.log if one.get("job") != job_id]
    return replace(evidence, log=rest + runs(job_id, *bodies))


def fired_last(evidence: Evidence, asked: float) -> Evidence:
    """All jobs but those fired after ``asked`` had ended by then."""
    return also(evidence, log=[line("all ended", asked + 0.1, asked=T + asked)])


def test_evidence_in_order_breaks_no_promise() -> None:
    assert find_broken(sound()) == []


def test_what_a_schedule_fires_after_all_has_ended_may_be_queued() -> None:
    late = moved(changed(sound(), 6, state="queued", run_count=0), 6, (8, "queued", ""), run_at=T + 8)

    assert find_broken(fired_last(without(late, log=lambda one: one.get("job") != 6), 7.9)) == []


DOCTORED: list[tuple[str, Callable[[Evidence], Evidence], str]] = [
    ("a committed job is lost", lambda e: without(e, jobs=lambda job: job.id != 1), "committed jobs are there"),
    (
        "a committed job is lost with its history",
        lambda e: without(e, jobs=lambda job: job.id != 1, changes=lambda change: change.job_id != 1),
        "committed jobs are there",
    ),
    ("a job is there twice", lambda e: changed(e, 2, token="t1"), "committed jobs are there"),
    ("a job was rolled back", lambda e: changed(e, 3, token="t7"), "committed jobs are there"),
    ("a job was never enqueued", lambda e: changed(e, 3, token="t9"), "committed jobs are there"),
    ("a job hangs", lambda e: changed(e, 1, state="running"), "jobs end"),
    ("a job of a schedule hangs", lambda e: changed(e, 6, state="queued"), "jobs end"),
    (
        "a job of a schedule hangs after all the others",
        lambda e: fired_last(changed(e, 6, state="queued"), 8.1),
        "jobs end",
    ),
    ("a job of a schedule runs on", lambda e: fired_last(changed(e, 6, state="running"), 7.9), "jobs end"),
    ("a job fails in silence", lambda e: changed(e, 3, errors=[]), "jobs end"),
    ("two runs at once", lambda e: ran(e, 3, (1, 4, 6.5, "Snooze"), (2, 6, 7, "Fail")), "runs do not overlap"),
    ("a run begins twice", lambda e: also(e, log=runs(3, (2, 8, 9, "Fail"))), "runs do not overlap"),
    ("a run without a claim", lambda e: also(e, log=runs(1, (2, 8, 9, "returned"))), "runs do not overlap"),
    (
        "a killed worker that goes on",
        lambda e: ran(
            without(e, log=lambda one: one.get("process") != 11), 2, (1, 1, None, ""), (2, 11, 12, "returned")
        ),
        "runs do not overlap",
    ),
    ("an effect is missing", lambda e: replace(e, effects=[]), "effects are made once"),
    ("an effect is made twice", lambda e: also(e, effects=[Effect(2, 1)]), "effects are made once"),
    ("an effect of a failed job", lambda e: changed(e, 2, state="failed"), "effects are made once"),
    (
        "too many run",
        lambda e: moved(e, 5, NEW, (1.5, "running", B), (4, "succeeded", ""), limit_key="pair"),
        "limits hold",
    ),
    (
        "too many start",
        lambda e: replace(e, policies=[Policy("pair", T - 9, max_starts=1, seconds=5)]),
        "limits hold",
    ),
    ("a key has two holders", lambda e: changed(e, 5, unique_key="u"), "unique keys are held by one"),
    ("a run is not counted", lambda e: changed(e, 1, run_count=0), "counters add up"),
    ("an attempt too many", lambda e: changed(e, 3, attempt=2), "counters add up"),
    (
        "a snooze spends an attempt",
        lambda e: replace(e, changes=[replace(c, attempt=c.attempt + 1) if c.snoozes else c for c in e.changes]),
        "counters add up",
    ),
    ("a move out of nothing", lambda e: without(e, changes=lambda change: change.seq != 1001), "counters add up"),
    ("a job without history", lambda e: without(e, changes=lambda change: change.job_id != 1), "counters add up"),
    ("a success is lost", lambda e: ran(e, 3, (1, 4, 5, "returned"), (2, 6, 7, "Fail")), "outcomes are written"),
    ("a success without a body", lambda e: ran(e, 1), "outcomes are written"),
    (
        "a worker robbed of its job",
        lambda e: also(e, beats=[Beat(A, T + 8, 5.0)]),
        "rescues wait for the lease",
    ),
    ("a late start", lambda e: changed(e, 5, expires_at=T + 2), "expired jobs do not start"),
    (
        "a worker breaks off",
        lambda e: also(e, log=[line("exited", 40, name="w", process=9, code=1, why="unknown", said="KeyError")]),
        "workers stop in order",
    ),
    ("a worker hangs", lambda e: also(e, log=[line("hung", 40, name="w", process=9)]), "workers stop in order"),
    (
        "a worker stops with an error",
        lambda e: also(e, log=[line("exited", 60, name="w", process=9, code=1, why="asked", said="")]),
        "workers stop in order",
    ),
    (
        "a slot fires twice",
        lambda e: also(
            e, jobs=[Job(7, "tick", "succeeded")], changes=moves(7, (8, "queued", ""), (8, "succeeded", ""))
        ),
        "slots fire once",
    ),
    ("a slot has no job", lambda e: also(e, fires=[Fire("tick", T + 16, 99)]), "slots fire once"),
    ("a job of another instant", lambda e: replace(e, fires=[Fire("tick", T, 6)]), "slots fire once"),
    (
        "a slot is forgotten",
        lambda e: without(e, log=lambda one: one.get("fault") not in {"restart fast", "swallow"}),
        "slots fire once",
    ),
]


@pytest.mark.parametrize(("doctor", "promise"), [case[1:] for case in DOCTORED], ids=[case[0] for case in DOCTORED])
def test_a_broken_promise_is_found(doctor: Callable[[Evidence], Evidence], promise: str) -> None:
    evidence = doctor(sound())
    broken = find_broken(evidence)
    assert promise in {one.promise for one in broken}
    told = failures(evidence, broken)
    assert f"BROKEN {promise}" in told
    assert "BROKEN" in summary(evidence, broken, seed=1, seconds=1)


def test_each_check_is_shown_to_fail() -> None:
    assert {promise for _, _, promise in DOCTORED} == {check.__name__.replace("_", " ") for check in CHECKS}


def test_a_run_may_overlap_one_that_was_frozen_past_its_lease() -> None:
    overlapping = ran(sound(), 2, (1, 1, 11.5, "CancelledError"), (2, 11, 12, "returned"))
    frozen = [line("fault", 3, fault="freeze", process=11), line("fault over", 11.2, fault="freeze", process=11)]
    assert {one.promise for one in find_broken(overlapping)} == {"runs do not overlap"}
    assert find_broken(also(overlapping, log=frozen)) == []


def test_the_history_of_a_job_tells_its_runs() -> None:
    evidence = ran(sound(), 3, (1, 4, 6.5, "Snooze"), (2, 6, 7, "Fail"))
    told = failures(evidence, [Broken("runs do not overlap", "so", 3)])
    assert told.index("queued to running: run 1") < told.index("end {'pid': 12, 'run': 2") < told.index("to failed")


@FULL
@pytest.mark.heavy(minutes=2)
def test_every_promise_is_kept_in_a_soak(full: bool, tmp_path: Path) -> None:
    skip_without_programs()
    minutes, pause, seeds = ("1", "4", (5, 11)) if full else ("0.08", "0.8", (5,))
    for seed in seeds:
        command = [sys.executable, SCRIPTS / "soak.py", "--minutes", minutes, "--pause", pause, "--seed", str(seed)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(" kept") == len(CHECKS)
        for fault in ("kill", "freeze", "restart fast", "swallow") if full else ("fault",):
            assert fault in done.stdout
    if sys.platform == "linux":
        assert list(belonging_to(tmp_path)) == []


def belonging_to(folder: Path) -> Iterator[int]:
    """The processes that were started with this folder in their environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if os.fsencode(folder) in path.read_bytes() and is_alive(int(path.parent.name)):
                yield int(path.parent.name)
