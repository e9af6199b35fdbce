"""A connection or session of the caller, whatever its colour, in one shape for the tests.

A test hands over what to do with the session (``await caller(lambda session: ...)``); the caller does it in the
session's own way: awaited, blocking, or inside ``run_sync``.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import akadze.metrics
import akadze.sync.metrics
import akadze.sync.testing
import akadze.testing

Row = tuple[Any, ...]
#: What a hook of a test does: given the connection and the job, the statements that it wants to be run.
Look = Callable[[Any, Any], Iterable[str]]


def _calls(*modules: ModuleType) -> SimpleNamespace:
    return SimpleNamespace(**{name: getattr(module, name) for module in modules for name in module.__all__})


#: The calls of each colour.
ASYNC = _calls(akadze, akadze.metrics, akadze.testing)
SYNC = _calls(akadze.sync, akadze.sync.metrics, akadze.sync.testing)


class Caller(ABC):
    """``calls`` are akadze's calls of the session's colour. ``kept`` are the session's attributes that stay as they
    are, ``given`` is what hooks receive."""

    calls: SimpleNamespace
    kept: tuple[str, ...] = ()

    def __init__(self, session: Any) -> None:
        self.session = session

    @property
    def given(self) -> Any:
        return self.session

    def attributes(self) -> Mapping[str, Any]:
        return {name: getattr(self.session, name) for name in self.kept}

    @abstractmethod
    async def __call__(self, do: Callable[[Any], Any]) -> Any:
        """Do something with the session, in its colour."""

    @abstractmethod
    async def execute(self, statement: str) -> list[Row]:
        """Run one statement as the caller, and return its rows as tuples."""

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    def savepoint(self) -> AbstractAsyncContextManager[None]: ...

    @abstractmethod
    def hook(self, look: Look) -> Callable[..., Any]:
        """Make a hook of the session's colour, for enqueue or transitions, that runs the statements of ``look``."""

    @abstractmethod
    def body(self, look: Callable[[], Iterable[str]]) -> Callable[..., Any]:
        """Make a task's body of the session's colour that runs statements in ``complete_tx``."""


class AsyncCaller(Caller):
    """A subclass says how its connection executes, and what differs at commit, rollback and savepoint."""

    calls = ASYNC

    async def _execute(self, statement: str) -> list[Row]:
        raise NotImplementedError

    async def __call__(self, do: Callable[[Any], Any]) -> Any:
        result = do(self.session)
        return await result if inspect.isawaitable(result) else result

    async def execute(self, statement: str) -> list[Row]:
        return await self._execute(statement)

    async def commit(self) -> None:
        await self.session.commit()

    async def rollback(self) -> None:
        await self.session.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        block: AbstractAsyncContextManager[None] = self.session.begin_nested()
        return block

    def hook(self, look: Look) -> Callable[..., Any]:
        async def hook(connection: Any, job: Any, *states: str) -> None:
            for statement in look(connection, job):
                await self._execute(statement)

        return hook

    def body(self, look: Callable[[], Iterable[str]]) -> Callable[..., Any]:
        async def body(n: int = 0) -> None:
            async with akadze.current().complete_tx() as connection:
                assert connection is self.given
                for statement in look():
                    await self._execute(statement)

        return body


class SyncCaller(Caller):
    """The same, blocking."""

    calls = SYNC

    def _execute(self, statement: str) -> list[Row]:
        raise NotImplementedError

    def _savepoint(self) -> Any:
        return self.session.begin_nested()

    async def __call__(self, do: Callable[[Any], Any]) -> Any:
        return do(self.session)

    async def execute(self, statement: str) -> list[Row]:
        return self._execute(statement)

    async def commit(self) -> None:
        self.session.commit()

    async def rollback(self) -> None:
        self.session.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self._savepoint():
            yield

    def hook(self, look: Look) -> Callable[..., Any]:
        def hook(connection: Any, job: Any, *states: str) -> None:
            for statement in look(connection, job):
                self._execute(statement)

        return hook

    def body(self, look: Callable[[], Iterable[str]]) -> Callable[..., Any]:
        def body(n: int = 0) -> None:
            with akadze.sync.current().complete_tx() as connection:
                assert connection is self.given
                for statement in look():
                    self._execute(statement)

        return body
