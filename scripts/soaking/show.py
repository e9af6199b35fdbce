"""What happened, as tables for a person; and the history of a job whose promise was broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from soaking.checks import CHECKS
from soaking.evidence import Broken, Evidence


def summary(evidence: Evidence, broken: list[Broken], *, seed: int, seconds: float) -> str:
    """Return the tables: jobs, runs, faults, checks."""
    changes = evidence.changes
    enqueued = Counter({kind: _tokens(evidence, kind) for kind in ("committed", "rolled back", "duplicate", "unknown")})
    ends = Counter(str(line["how"]) for line in evidence.lines("end"))
    moves = {
        "claims": sum(change.starts for change in changes),
        "rescues": sum(change.lost for change in changes),
        "bodies begun": len(evidence.started),
        "effects": len(evidence.effects),
        "slots fired": len(evidence.fires),
        "beats": sum(not beat.gone for beat in evidence.beats),
        "workers": len({beat.worker for beat in evidence.beats}),
    }
    exits = Counter(f"{line['why']}, code {line['code']}" for line in evidence.lines("exited"))
    faults = Counter(line["fault"] for line in evidence.lines("fault"))
    kept = Counter(one.promise for one in broken)
    promises = {
        name: f"BROKEN {kept[name]} times" if kept[name] else "kept"
        for name in (check.__name__.replace("_", " ") for check in CHECKS)
    }
    parts = [
        f"seed {seed}, {seconds:.0f} s of faults",
        _table("jobs by state", Counter(job.state for job in evidence.jobs)),
        _table("jobs by task", Counter(job.task for job in evidence.jobs)),
        _table("enqueues", enqueued),
        _table("runs", moves),
        _table("how bodies ended", ends),
        _table("interference", Counter(line["how"] for line in evidence.lines("interfered"))),
        _table("faults", faults),
        _table("ends of processes", exits),
        _table("promises", promises),
    ]
    return "\n".join(parts)


def _tokens(evidence: Evidence, kind: str) -> int:
    return sum(len(line["tokens"]) for line in evidence.lines(kind))


def _table(title: str, rows: Mapping[str, object]) -> str:
    ordered = sorted(rows.items(), key=lambda row: -row[1]) if isinstance(rows, Counter) else rows.items()
    width = max((len(name) for name in rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {value:>8}" for name, value in ordered)])


def history(evidence: Evidence, job_id: int) -> str:
    """Return all that is known of a job, in the order of time."""
    lines: list[tuple[float, str]] = []
    for change in evidence.changes_of.get(job_id, []):
        spent = f"run {change.run_count}, attempt {change.attempt}, snoozes {change.snoozes}"
        who = change.new_worker or change.old_worker or ""
        extra = f"{' cancel requested' * change.cancel}{' rescued' * change.lost}"
        lines.append((change.at, f"{change.old_state} to {change.new_state}: {spent}{extra} {who}"))
    for line in evidence.log:
        if line.get("job") == job_id and line["what"] in {"start", "end", "interfered"}:
            told = {key: value for key, value in line.items() if key not in {"what", "at", "job"}}
            lines.append((float(line["at"]), f"{line['what']} {told}"))
    processes = {line["pid"] for line in evidence.log if line.get("job") == job_id}
    lines += [
        (float(line["at"]), f"{line['what']} {line['fault']} of {line['process']}")
        for line in evidence.lines("fault", "fault over")
        if line.get("process") in processes
    ]
    job = next((job for job in evidence.jobs if job.id == job_id), None)
    told_lines = [f"    {_clock(at)} {text}" for at, text in sorted(lines)]
    return "\n".join([f"  job {job_id}: {job}", *told_lines])


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")


def failures(evidence: Evidence, broken: list[Broken], *, most: int = 10) -> str:
    """Return each broken promise with the history of its job."""
    parts = []
    for one in broken[:most]:
        parts.append(f"BROKEN {one.promise}: {one.what}")
        if one.job_id is not None:
            parts.append(history(evidence, one.job_id))
    if len(broken) > most:
        parts.append(f"and {len(broken) - most} more")
    return "\n".join(parts)
