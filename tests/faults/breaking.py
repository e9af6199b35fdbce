"""Ways in which a server fails, on a PostgreSQL of the tests' own: each strikes, is noticed, and is mended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from akadze import dev
from akadze._embedded import give_to
from tests.waiting import until
from tests.worker.table import Table

#: So that there are few to take away.
SETTINGS = {"max_connections": "16", "superuser_reserved_connections": "1"}

#: Sessions of the worker, on the whole server.
_WORKERS = "from pg_stat_activity where backend_type = 'client backend' and application_name <> 'test'"


async def connect(url: str) -> psycopg.AsyncConnection[dict[str, Any]]:
    """Connect as the tests do: in autocommit, under a name that no fault touches, allowed to write."""
    return await psycopg.AsyncConnection.connect(
        url,
        autocommit=True,
        row_factory=dict_row,
        application_name="test",
        options="-c default_transaction_read_only=off",
    )


class SteadyTable(Table):
    """Connects anew when the server was gone."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection[dict[str, Any]]) -> None:
        super().__init__(connection)
        self._url = url

    @classmethod
    async def open(cls, url: str) -> SteadyTable:
        return cls(url, await connect(url))

    async def rows(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        async def answered() -> list[list[dict[str, Any]]]:
            try:
                if self._connection.closed:
                    self._connection = await connect(self._url)
                return [await super(SteadyTable, self).rows(statement, *parameters)]
            except psycopg.OperationalError:
                await self._connection.close()
                return []

        (rows,) = await until(answered)
        return list(rows)

    async def close(self) -> None:
        await self._connection.close()


class Fault:
    """One way to fail. `complaint` is what the server says to a worker then, in its log."""

    complaint = ""

    def __init__(self, server: dev.Server, table: SteadyTable, url: str) -> None:
        self.server = server
        self.table = table
        self.url = url
        self._said = 0

    async def strike(self) -> None:
        raise NotImplementedError

    async def mend(self) -> None:
        raise NotImplementedError

    async def noticed(self, out_of_reach: Callable[[], Any]) -> None:
        """Wait until the worker has met the fault."""
        await until(out_of_reach)
        if self.complaint:
            await until(lambda: self._complaints() > self._said)

    def _complaints(self) -> int:
        return (self.server.directory / "log").read_text(errors="replace").count(self.complaint)

    async def _in_thread(self, call: Callable[..., None], *arguments: Any) -> None:
        await asyncio.to_thread(call, *arguments)


class Killed(Fault):
    """All processes end at once, as in a crash; the next start recovers."""

    async def strike(self) -> None:
        await self._in_thread(self.server.stop, "immediate")

    async def mend(self) -> None:
        await self._in_thread(self.server.start)


class Restarted(Fault):
    """An orderly restart, which tells each session that it ends."""

    async def strike(self) -> None:
        await self._in_thread(self.server.restart, "fast")

    async def mend(self) -> None:
        pass


class InRecovery(Fault):
    """A crash, after which the server is a standby that takes readers, until it is promoted."""

    complaint = "read-only transaction"

    async def strike(self) -> None:
        self._said = self._complaints()
        await self._in_thread(self.server.stop, "immediate")
        mark = self.server.directory / "data" / "standby.signal"
        mark.touch()
        give_to(self.server._account, mark)
        await self._in_thread(self.server.start)

    async def mend(self) -> None:
        assert await self.table.value("select pg_is_in_recovery()")
        assert await self.table.value("select pg_promote()")


class ReadOnly(Fault):
    """The server takes no more writes, and the sessions that wrote are ended."""

    complaint = "read-only transaction"

    async def strike(self) -> None:
        self._said = self._complaints()
        await self._turn("set default_transaction_read_only = on", "on")
        await self.table.rows(f"select pg_terminate_backend(pid) {_WORKERS}")

    async def mend(self) -> None:
        await self._turn("reset default_transaction_read_only", "off")

    async def _turn(self, setting: str, expected: str) -> None:
        await self.table.rows(f"alter system {setting}")
        await self.table.rows("select pg_reload_conf()")

        async def holds() -> bool:
            async with await psycopg.AsyncConnection.connect(self.url, application_name="test") as fresh:
                row = await (await fresh.execute("show default_transaction_read_only")).fetchone()
                return row == (expected,)

        await until(holds)


class OutOfConnections(Fault):
    """Others hold each connection that the server has, and the worker's own are ended."""

    complaint = "too many clients"

    async def strike(self) -> None:
        self._hoard: list[psycopg.AsyncConnection[Any]] = []

        async def all_taken() -> bool:
            try:
                while True:
                    self._hoard.append(await connect(self.url))
            except psycopg.OperationalError:
                return not await self.table.rows(f"select pg_terminate_backend(pid) {_WORKERS}")

        await until(all_taken)
        self._said = self._complaints()

    async def mend(self) -> None:
        for connection in self._hoard:
            await connection.close()


FAULTS: dict[str, type[Fault]] = {
    "killed": Killed,
    "restarted": Restarted,
    "in recovery": InRecovery,
    "read-only": ReadOnly,
    "out of connections": OutOfConnections,
}

Hold = Callable[[], Awaitable[None]]
_LOCK = 4711

_HOLD = f"""
create function public.hold() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared({_LOCK});
  return coalesce(new, old);
end $$
"""


class Gate:
    """Holds the worker's transactions in the middle of what a trigger describes, until opened or the server fails."""

    def __init__(self, url: str, table: SteadyTable) -> None:
        self._url = url
        self._table = table
        self._holder: psycopg.AsyncConnection[Any] | None = None

    async def close(self, trigger: str) -> None:
        self._holder = await connect(self._url)
        await self._holder.execute(f"select pg_advisory_lock({_LOCK})")
        await self._table.rows(_HOLD)
        await self._table.rows(f"create trigger hold {trigger} execute function public.hold()")

    async def reached(self) -> None:
        await self._table.until(
            f"select count(*) > 0 from pg_locks where locktype = 'advisory' and objid = {_LOCK} and not granted"
        )

    async def open(self) -> None:
        # Not by closing the connection: that would be one more for the worker.
        if self._holder is not None:
            try:
                await self._holder.execute(f"select pg_advisory_unlock({_LOCK})")
            except psycopg.OperationalError:
                await self._holder.close()  # the lock went with the server

    async def end(self) -> None:
        if self._holder is not None:
            await self._holder.close()
