"""Jobs of a test that breaks something: bodies that tell how they were run, and an enqueue that goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from sqlalchemy.exc import DBAPIError

from tests.worker.table import enqueue


class Runs:
    """Bodies that count, tell when two of one job overlap, and may wait for their release by name."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.overlaps: list[str] = []
        self.releases: dict[str, asyncio.Event] = {}

    def hold(self, *names: str) -> None:
        self.releases.update((name, asyncio.Event()) for name in names)

    async def body(self, name: str) -> str:
        self.started[name] += 1
        self.running[name] += 1
        if self.running[name] > 1:
            self.overlaps.append(name)
        try:
            await asyncio.sleep(0.005)
            if name in self.releases:
                await self.releases[name].wait()
        finally:
            self.running[name] -= 1
        return name


async def enqueue_persistently(task: Any, name: str | None = None) -> int:
    """Enqueue as an application does whose pool holds connections to a server that is gone."""
    while True:
        try:
            return await enqueue(task, {} if name is None else {"name": name})
        except DBAPIError:
            await asyncio.sleep(0.02)
