"""A proxy between a worker and the server, which loses answers on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


class Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        #: What has gone each way so far.
        self.sent = b""
        self.received = b""
        #: The client gets no more answers.
        self.muted = False

    def cut(self) -> None:
        """Let the client see the end of its connection. The server does not see it, as when a network fails."""
        self.muted = True
        self._client.transport.abort()

    def close(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()


#: Told of the link and of what its client sends, before the server gets it.
Loses = Callable[[Link, bytes], bool]


class Proxy:
    """Passes everything on until it is told what to lose."""

    def __init__(self, database_url: str) -> None:
        self._target = conninfo_to_dict(database_url)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loses: Loses | None = None
        self._delivers = True
        self._links: list[Link] = []
        #: The link that was muted.
        self.lost: Link | None = None

    @property
    def url(self) -> str:
        """The database's URL, by way of this proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user, password = (quote(str(self._target.get(name, "")), safe="") for name in ("user", "password"))
        account = f"{user}:{password}@" if password else f"{user}@" if user else ""
        # In clear, so that what is sent can be looked at.
        options = "sslmode=disable&gssencmode=disable"
        return f"postgresql://{account}127.0.0.1:{port}/{self._target['dbname']}?{options}"

    def lose_answer(self, loses: Loses, *, delivers: bool = True) -> None:
        """Give no answer to the first message that ``loses`` picks, nor to any after it on the same link.

        Without ``delivers`` the server does not get the message either.
        """
        self._loses = loses
        self._delivers = delivers
        self.lost = None

    def carrying(self, *texts: bytes) -> Link:
        """Return the newest link whose client has sent all of these texts."""
        return [link for link in self._links if all(text in link.sent for text in texts)][-1]

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.close()
        await self._server.wait_closed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        host = str(self._target.get("host") or self._target.get("hostaddr") or "localhost")
        port = int(self._target.get("port") or 5432)
        if host.startswith("/"):
            from_server, to_server = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            from_server, to_server = await asyncio.open_connection(host, port)
        link = Link(to_client, to_server)
        self._links.append(link)
        for pump in (
            self._pass_requests(link, from_client, to_server),
            self._pass_answers(link, from_server, to_client),
        ):
            task = asyncio.get_running_loop().create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_requests(
        self, link: Link, from_client: asyncio.StreamReader, to_server: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while data := await from_client.read(1 << 20):
                if self._loses is not None and self._loses(link, data):
                    self._loses = None
                    link.muted = True
                    self.lost = link
                    if not self._delivers:
                        to_server.transport.abort()
                link.sent += data
                to_server.write(data)
                await to_server.drain()
            if not link.muted:
                to_server.close()

    async def _pass_answers(
        self, link: Link, from_server: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while data := await from_server.read(1 << 20):
                link.received += data
                if not link.muted:
                    to_client.write(data)
                    await to_client.drain()
            to_client.close()


@asynccontextmanager
async def open_proxy(database_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(database_url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
