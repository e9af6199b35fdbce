"""When which faults were under way, and when nobody was at work for another reason."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from soaking.evidence import Evidence

#: What may keep a worker, or all of them, from their work.
OUTAGES = ("restart fast", "restart immediate", "cut", "swallow", "terminate", "freeze", "hiccup")
_RECOVERS = 5.0  # seconds after a fault until everything works again

Span = tuple[float, float]


def intervals(evidence: Evidence, *faults: str) -> dict[int, list[Span]]:
    """From when to when each process was under one of these faults; 0 stands for all of them."""
    found: dict[int, list[Span]] = defaultdict(list)
    began: dict[tuple[str, int], float] = {}
    for line in evidence.lines("fault", "fault over"):
        if line["fault"] in faults:
            key = (line["fault"], line.get("process", 0))
            if line["what"] == "fault":
                began[key] = line["at"]
            else:
                found[key[1]].append((began.pop(key, line["at"]), line["at"]))
    for (_, process), at in began.items():
        found[process].append((at, float("inf")))
    return found


def disturbances(evidence: Evidence) -> list[Span]:
    """The faults, and the times in which nobody beat, which is what a busy machine looks like."""
    spans = [span for spans in intervals(evidence, *OUTAGES, "kill", "stop").values() for span in spans]
    found = [(at, over + _RECOVERS) for at, over in spans]
    beats = sorted(beat.at for beat in evidence.beats)
    found += [(before, after + 1) for before, after in pairwise(beats) if after - before > 1.2]
    return found
