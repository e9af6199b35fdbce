"""A network between workers and the server that can be cut, or swallow everything without a word."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


class Network:
    """A TCP proxy on a port of its own."""

    def __init__(self, url: str) -> None:
        self._target = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._open = True
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user, password, name = (quote(self._target.get(key, ""), safe="") for key in ("user", "password", "dbname"))
        self.url = f"postgresql://{user}:{password}@127.0.0.1:{port}/{name}?sslmode=disable&gssencmode=disable"

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._open = False
        for writer in [*self._links]:
            writer.transport.abort()

    def swallow(self) -> None:
        """Let nothing through any more, and break nothing."""
        self._flows.clear()

    def heal(self) -> None:
        self._open = True
        self._flows.set()

    async def end(self) -> None:
        self.cut()
        self.heal()
        if self._server is not None:
            self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            if self._open:
                answers, there = await asyncio.open_connection(self._target["host"], int(self._target["port"]))
                self._links.add(there)
                await asyncio.gather(self._pass_on(reader, there), self._pass_on(answers, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, there):
                if one is not None:
                    self._links.discard(one)
                    one.transport.abort()
            self._tasks.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(1 << 16):
                await self._flows.wait()
                target.write(chunk)
                await target.drain()
        # What is on its way has been sent: the end of one direction is the end of both.
        target.transport.abort() if not self._flows.is_set() else target.close()
