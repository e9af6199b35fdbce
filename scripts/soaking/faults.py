"""What is done to the crew, the network and the server. Each is logged from its beginning to its end."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import psycopg

from akadze import dev
from soaking import log
from soaking.crew import TTL, Member
from soaking.proxy import Network

_TERMINATE = """
select count(pg_terminate_backend(pid))
from (
  select pid from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
  order by random() limit %s
) chosen
"""
#: How long a worker that is told to stop may take: the shutdown timeout, and what its last statements may need.
_STOP_WITHIN = 40.0


class Faults:
    """Chooses one fault after another, as the seed says, and lets some of them overlap."""

    def __init__(
        self, server: dev.Server, url: str, network: Network, workers: list[Member], *, seed: int, pause: float
    ) -> None:
        self._server = server
        self._url = url
        self._network = network
        self._workers = workers
        self._dice = random.Random(f"faults {seed}")
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._server_lock = asyncio.Lock()
        self._network_lock = asyncio.Lock()
        self._kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.kill, 4),
            (self.freeze, 2),
            (self.hiccup, 2),
            (self.stop, 3),
            (self.terminate, 4),
            (self.restart_fast, 1),
            (self.restart_immediate, 1),
            (self.cut, 3),
            (self.swallow, 3),
        ]

    async def go_on(self, stopped: asyncio.Event) -> None:
        """Do harm until stopped; then let what is under way end."""
        kinds, weights = zip(*self._kinds, strict=True)
        order = self._dice.sample(kinds, len(kinds))  # each of them early
        while not stopped.is_set():
            kind = order.pop() if order else self._dice.choices(kinds, weights)[0]
            task = asyncio.create_task(self._guarded(kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                async with asyncio.timeout(self._pause * (0.3 + 1.4 * self._dice.random())):
                    await stopped.wait()
            except TimeoutError:
                pass
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _guarded(self, kind: Callable[[], Awaitable[None]]) -> None:
        try:
            await kind()
        except (psycopg.Error, OSError) as error:
            log.write("fault failed", fault=getattr(kind, "__name__", "?"), error=type(error).__name__)

    @asynccontextmanager
    async def _logged(self, fault: str, **fields: Any) -> AsyncIterator[None]:
        log.write("fault", fault=fault, **fields)
        try:
            yield
        finally:
            log.write("fault over", fault=fault, **fields)

    def _victim(self) -> Member:
        return self._dice.choice(self._workers)

    async def kill(self) -> None:
        victim = self._victim()
        async with victim.busy:
            pid = victim.pid
            if pid is not None:
                async with self._logged("kill", process=pid):
                    victim.send(signal.SIGKILL)
                    await victim.ended(pid, within=5)

    async def freeze(self) -> None:
        await self._stand_still("freeze", TTL + 1.5 + self._dice.random())

    async def hiccup(self) -> None:
        await self._stand_still("hiccup", 0.3 + 2 * self._dice.random())

    async def _stand_still(self, fault: str, seconds: float) -> None:
        victim = self._victim()
        async with victim.busy:
            pid = victim.pid
            if pid is not None:
                async with self._logged(fault, process=pid):
                    victim.send(signal.SIGSTOP)
                    try:
                        await asyncio.sleep(seconds)
                    finally:
                        victim.send(signal.SIGCONT)

    async def stop(self) -> None:
        victim = self._victim()
        async with victim.busy:
            pid = victim.pid
            if pid is not None:
                async with self._logged("stop", process=pid):
                    victim.expected = True
                    victim.send(signal.SIGTERM)
                    if not await victim.ended(pid, within=_STOP_WITHIN):
                        log.write("hung", name=victim.name, process=pid)
                        victim.send(signal.SIGKILL)

    async def terminate(self) -> None:
        count = self._dice.choice([1, 3, 100])
        connecting = psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=10)
        async with self._logged("terminate"), await connecting as connection:
            await connection.execute(_TERMINATE, [count])

    async def restart_fast(self) -> None:
        await self._restart("fast")

    async def restart_immediate(self) -> None:
        await self._restart("immediate")

    async def _restart(self, mode: Literal["fast", "immediate"]) -> None:
        away = 1.5 * self._dice.random()
        async with self._server_lock, self._logged(f"restart {mode}"):
            await asyncio.to_thread(self._server.stop, mode)
            await asyncio.sleep(away)
            await asyncio.to_thread(self._server.start)

    async def cut(self) -> None:
        seconds = 3 * self._dice.random()
        async with self._network_lock, self._logged("cut"):
            self._network.cut()
            await asyncio.sleep(seconds)
            self._network.heal()

    async def swallow(self) -> None:
        seconds, breaks = 1 + 8 * self._dice.random(), self._dice.random() < 0.5
        async with self._network_lock, self._logged("swallow"):
            self._network.swallow()
            await asyncio.sleep(seconds)
            if breaks:
                self._network.cut()
            self._network.heal()
