"""Several statements in one round trip, on a connection that one task alone uses.

This is libpq's pipeline mode through `psycopg.pq`. psycopg's own pipeline waits on the socket once for each statement,
and makes a cursor for each; an exchange is three statements at most, many times a second.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.waiting import Ready, Wait

from akadze._statement import Statement
from akadze._worker import literals

#: A statement and its parameters by name.
Sent = tuple[Statement, Mapping[str, Any]]

_ANSWER = (True,)
_PREPARED_ANSWER = (False, True)
_FAILED = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}


class Reply:
    """The answer to one statement: its rows as tuples, and the names of their columns."""

    __slots__ = ("_result", "rows")

    def __init__(self, result: pq.abc.PGresult, rows: list[tuple[Any, ...]]) -> None:
        self._result = result
        self.rows = rows

    def as_dicts(self) -> list[dict[str, Any]]:
        names = [(self._result.fname(place) or b"").decode() for place in range(self._result.nfields)]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class Wire:
    """Talks over one psycopg connection, whose own statements must not be under way at the same time."""

    def __init__(self, raw: psycopg.AsyncConnection[Any], *, prepares: bool) -> None:
        self._raw = raw
        self._prepares = prepares
        self._prepared: dict[Statement, bytes] = {}

    async def talk(self, sent: Sequence[Sent]) -> list[Reply]:
        """Send all, and return the answers; raise the first error. Outside a transaction they are one of their own."""
        pgconn = self._raw.pgconn
        pgconn.enter_pipeline_mode()
        answering: list[bool] = []
        for statement, parameters in sent:
            answering += self._send(pgconn, statement, [_text(parameters[name]) for name in statement.names])
        pgconn.pipeline_sync()
        try:
            results = await self._raw.wait(_exchange(pgconn))
        finally:
            # Where answers are still to come after a cancellation, the connection is of no use any more.
            with suppress(psycopg.Error):
                pgconn.exit_pipeline_mode()
        return [self._reply(result) for result, answers in zip(results, answering, strict=True) if answers]

    def _send(self, pgconn: Any, statement: Statement, parameters: list[bytes | None]) -> Sequence[bool]:
        """Send one; tell of each result that will come whether it is the statement's answer."""
        if not self._prepares:
            pgconn.send_query_params(statement.numbered.encode(), parameters, result_format=pq.Format.BINARY)
            return _ANSWER
        name, new = self._prepared.get(statement), False
        if name is None:
            # psycopg's own names begin with an underscore.
            name = self._prepared[statement] = f"akadze_{len(self._prepared)}".encode()
            pgconn.send_prepare(name, statement.numbered.encode())
            new = True
        pgconn.send_query_prepared(name, parameters, result_format=pq.Format.BINARY)
        return _PREPARED_ANSWER if new else _ANSWER

    def _reply(self, result: pq.abc.PGresult) -> Reply:
        if not result.ntuples:
            return Reply(result, [])
        transformer = Transformer(self._raw)
        transformer.set_pgresult(result, format=pq.Format.BINARY)
        return Reply(result, transformer.load_rows(0, result.ntuples, tuple))


def _text(value: Any) -> bytes | None:
    if value is None:
        return None
    return (literals.plain(value) if isinstance(value, list) else str(value)).encode()


def _exchange(pgconn: Any) -> Generator[Wait, Ready | int, list[pq.abc.PGresult]]:
    """Send what is waiting and read up to the end of the pipeline; return the results of the statements."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    results: list[pq.abc.PGresult] = []
    failure = None
    ended = False
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            # The end of one statement. Twice in a row it would be that of all, and asking on would hold up the loop.
            if ended:
                raise psycopg.OperationalError("the server's answers ended before the end of the pipeline")
            ended = True
            continue
        ended = False
        status = result.status
        if status == pq.ExecStatus.PIPELINE_SYNC:
            break
        if status in _FAILED and failure is None:
            failure = result
        results.append(result)
    if failure is not None:
        raise error_from_result(failure)
    return results
