"""What the scenes of the demo share: the database, the workers, the screen, and what has been noted on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, async_sessionmaker, create_async_engine

from akadze._connections import async_caller
from akadze._statement import statement
from akadze._urls import sqlalchemy_url
from akadze.demo import shop
from akadze.demo.crew import Crew
from akadze.demo.screen import Screen, View
from akadze.errors import AkadzeError

__all__ = ["TASKS", "Notes", "Stage"]

TASKS = sorted(shop.app.tasks)

_LOOK = 0.1
_PATIENCE = 45.0


@dataclass(slots=True)
class Notes:
    """What the scenes saw with their own eyes; the checks compare it with the tables."""

    orders: list[int] = field(default_factory=list)
    rolled_back: int = 0
    called_off: int = 0
    killed: int = 0
    taken_over_by: int = 0
    exit_codes: dict[int, int] = field(default_factory=dict)


class Stage:
    """The database with its shop, as the shop's own web process would use it, and the workers beside it."""

    def __init__(self, database_url: str, screen: Screen, first: int) -> None:
        self.screen = screen
        self.notes = Notes()
        self.crew = Crew(database_url)
        self.engine: AsyncEngine = create_async_engine(
            sqlalchemy_url(database_url), connect_args={"prepare_threshold": None}
        )
        self.sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self._first = first
        self._reader: AsyncConnection | None = None
        self._reading = asyncio.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep the live view up to date, and clear up at the end whatever happened."""
        try:
            self._reader = await self.engine.connect()
            await self._reader.execution_options(isolation_level="AUTOCOMMIT")
            looking = asyncio.create_task(self._look())
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.wait([looking])
                await self._reader.close()
        finally:
            self.crew.end()
            await self.engine.dispose()

    async def rows(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run a statement of demo.sql; ``tasks`` and ``first`` are filled in."""
        block = statement("demo", name)
        known = {"tasks": TASKS, "first": self._first, **parameters}
        assert self._reader is not None
        async with self._reading:
            return await async_caller(self._reader, reading=True).rows(
                block, **{bind: known[bind] for bind in block.names}
            )

    async def row(self, name: str, **parameters: Any) -> dict[str, Any]:
        return (await self.rows(name, **parameters))[0]

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it holds. Raises AkadzeError when that takes too long, or a worker ended by itself."""
        deadline = time.monotonic() + _PATIENCE
        while not await holds():
            self.crew.check()
            if time.monotonic() > deadline:
                raise AkadzeError(f"the demo waited {_PATIENCE:.0f} s for this and gave up: {what}")
            await asyncio.sleep(_LOOK / 2)

    async def ended(self, *tasks: str) -> bool:
        """Whether no job of these tasks runs, or waits for anything but a time far away."""
        return all(
            row["waiting"] + row["retrying"] + row["running"] == 0
            for row in await self.rows("count_by_task")
            if row["task"] in tasks
        )

    async def view(self) -> View:
        rows = {row["task"]: row for row in await self.rows("count_by_task")}
        # In the order in which the shop registers them.
        tasks = [rows[name] for name in shop.app.tasks if name in rows]
        return View(tasks, self.crew.alive, [self.notes.killed] if self.notes.killed else [])

    async def _look(self) -> None:
        while True:
            self.screen.show(await self.view())
            await asyncio.sleep(_LOOK)
