"""The run log: one file for each process, a JSON object a line. It outlives its process, also a killed one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

#: The folder of the log, for the processes that the soak starts.
VARIABLE = "SOAK_LOG"

_files: dict[int, int] = {}


def write(what: str, **fields: Any) -> None:
    """Add a line to this process's file, with the time."""
    file = _files.get(os.getpid())
    if file is None:
        path = Path(os.environ[VARIABLE]) / f"{os.getpid()}-{time.time_ns()}.jsonl"
        file = _files[os.getpid()] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    line = {"what": what, "at": time.time(), "pid": os.getpid(), **fields}
    os.write(file, (json.dumps(line) + "\n").encode())


def read(directory: Path) -> list[dict[str, Any]]:
    """Return all lines in the order of their times, without a last one that was cut off."""
    texts = [path.read_text() for path in directory.glob("*.jsonl")]
    lines: list[dict[str, Any]] = [json.loads(line) for text in texts for line in text.split("\n")[:-1]]
    return sorted(lines, key=lambda line: float(line["at"]))
