"""A TCP proxy in front of the database, to cut connections or let them hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    """Passes bytes on until told otherwise. `url` is that of the database through it."""

    def __init__(self, database_url: str) -> None:
        self._info = {name: str(value) for name, value in conninfo_to_dict(database_url).items()}
        self._connections: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._open = True
        #: Connections that met nobody.
        self.refused = 0
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = quote(self._info.get("user", ""), safe="")
        if "password" in self._info:
            login += f":{quote(self._info['password'], safe='')}"
        at = "@" if login else ""
        # No TLS to a server that is met on a socket; its absence is not a reason to ask twice.
        self.url = f"postgresql://{login}{at}127.0.0.1:{port}/{quote(self._info['dbname'], safe='')}?sslmode=disable"

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        self._open = False
        for writer in [*self._connections]:
            writer.transport.abort()

    def freeze(self) -> None:
        """Let everything hang: nothing arrives any more, and nothing is broken."""
        self._flowing.clear()

    def restore(self) -> None:
        self._open = True
        self._flowing.set()

    async def end(self) -> None:
        self.cut()
        self.restore()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            self.refused += 1
            writer.transport.abort()
            return
        host = self._info.get("host", "127.0.0.1")
        port = int(self._info.get("port", 5432))
        if host.startswith("/"):
            there, back = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there, back = await asyncio.open_connection(host, port)
        self._connections |= {writer, back}
        try:
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        finally:
            self._connections -= {writer, back}

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(65536):
                await self._flowing.wait()
                target.write(chunk)
                await target.drain()
        target.transport.abort()


@asynccontextmanager
async def proxied(database_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(database_url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.end()
