"""Task bodies of both kinds whose parameters have the names of what surrounds a run, and note what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from akadze import Akadze
from akadze.task import Task

#: One value that is no other's, of each kind that comes back from JSON as it was.
GIVEN: dict[str, Any] = {
    "self": 1, "session": "s", "priority": -3, "json": {"a": [1, None]}, "schema": 1.5, "model_config": "m",
    "args": [4, "5"], "kwargs": {"k": 6}, "task": "t", "job": 7, "fn": None, "run": False,
}  # fmt: skip

OddlyNamed = tuple[Task[Any], Mapping[str, Any], list[dict[str, Any]]]


def _plain(app: Akadze) -> OddlyNamed:
    arrived: list[dict[str, Any]] = []

    @app.task("plain")
    def body(
        self: int, session: str, priority: int, json: dict[str, Any], schema: float, model_config: str,
        args: list[Any], kwargs: dict[str, int], task: str, job: int, fn: None, run: bool,
    ) -> None:  # fmt: skip
        arrived.append({name: value for name, value in locals().items() if name != "arrived"})

    return body, GIVEN, arrived


def _async(app: Akadze) -> OddlyNamed:
    arrived: list[dict[str, Any]] = []

    @app.task("async")
    async def body(
        self: int, session: str, priority: int, json: dict[str, Any], schema: float, model_config: str,
        args: list[Any], kwargs: dict[str, int], task: str, job: int, fn: None, run: bool,
    ) -> None:  # fmt: skip
        arrived.append({name: value for name, value in locals().items() if name != "arrived"})

    return body, GIVEN, arrived


#: By the kind of body: the task, arguments for it, and the arguments of its runs so far.
ODDLY_NAMED: Mapping[str, Callable[[Akadze], OddlyNamed]] = {"plain": _plain, "coroutine": _async}
