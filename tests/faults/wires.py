"""A TCP proxy whose connections fail one by one: cut, half closed, slow, or swallowed without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


class Wire:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        #: What has gone each way so far.
        self.sent = b""
        self.received = b""
        self.delay = 0.0
        self.swallows_requests = False
        self.swallows_answers = False

    def black_hole(self) -> None:
        """Let nothing through any more, and tell neither side."""
        self.swallows_requests = self.swallows_answers = True

    def cut(self) -> None:
        """Let both sides see the end."""
        self._client.transport.abort()
        self._server.transport.abort()

    def end_answers(self) -> None:
        """Half close: the client reads the end, and what it sends still arrives."""
        self.swallows_answers = True
        self._client.write_eof()

    def end_requests(self) -> None:
        """Half close: the server reads the end, and the client is told nothing."""
        self.black_hole()
        self._server.write_eof()

    async def pass_requests(self, source: asyncio.StreamReader, chosen: Callable[[Wire, bytes], bool]) -> None:
        with suppress(OSError):
            while chunk := await source.read(1 << 20):
                self.swallows_answers = self.swallows_answers or chosen(self, chunk)
                self.sent += chunk
                await asyncio.sleep(self.delay)
                if not self.swallows_requests:
                    self._server.write(chunk)
                    await self._server.drain()
        if not self.swallows_requests:
            self._server.transport.abort()

    async def pass_answers(self, source: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while chunk := await source.read(1 << 20):
                self.received += chunk
                await asyncio.sleep(self.delay)
                if not self.swallows_answers:
                    self._client.write(chunk)
                    await self._client.drain()
        if not self.swallows_answers:
            self._client.transport.abort()


class Wires:
    """The proxy. `url` is that of the database through it."""

    def __init__(self, database_url: str) -> None:
        self._target = {name: str(value) for name, value in conninfo_to_dict(database_url).items()}
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._picks: Callable[[Wire, bytes], bool] | None = None
        self.wires: list[Wire] = []
        #: The wire whose answer is lost.
        self.lost: Wire | None = None
        #: New connections are accepted and hear nothing.
        self.swallows_new = False
        self.delay = 0.0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        account = ":".join(quote(self._target[name], safe="") for name in ("user", "password") if name in self._target)
        at = "@" if account else ""
        # In clear, so that what is sent can be looked at.
        options = "sslmode=disable&gssencmode=disable"
        return f"postgresql://{account}{at}127.0.0.1:{port}/{quote(self._target['dbname'], safe='')}?{options}"

    def carrying(self, text: bytes) -> list[Wire]:
        """The wires on which a client has sent this text."""
        return [wire for wire in self.wires if text in wire.sent]

    def lose_answer(self, picks: Callable[[Wire, bytes], bool]) -> None:
        """Let the server have the first message that is picked, and the client no answer from then on."""
        self._picks = picks
        self.lost = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for wire in self.wires:
            wire.cut()
        await self._server.wait_closed()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def _chosen(self, wire: Wire, chunk: bytes) -> bool:
        if self._picks is None or not self._picks(wire, chunk):
            return False
        self._picks = None
        self.lost = wire
        return True

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        host, port = self._target.get("host", "localhost"), int(self._target.get("port", 5432))
        if host.startswith("/"):
            from_server, to_server = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            from_server, to_server = await asyncio.open_connection(host, port)
        wire = Wire(to_client, to_server)
        wire.delay = self.delay
        if self.swallows_new:
            wire.black_hole()
        self.wires.append(wire)
        for passing in (wire.pass_requests(from_client, self._chosen), wire.pass_answers(from_server)):
            pump = asyncio.get_running_loop().create_task(passing)
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


@asynccontextmanager
async def open_wires(database_url: str) -> AsyncIterator[Wires]:
    wires = Wires(database_url)
    await wires.open()
    try:
        yield wires
    finally:
        await wires.close()
