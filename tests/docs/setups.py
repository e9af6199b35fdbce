"""What stands around the blocks that are marked ``<!-- run: NAME -->``: each set-up has a half before, one after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.docs.bench import Bench

SetUp = Callable[[Bench], AbstractAsyncContextManager[None]]

SET_UPS: dict[str, SetUp] = {}


def set_up(name: str) -> Callable[[Callable[[Bench], AsyncIterator[None]]], SetUp]:
    """Register an async generator: what comes before its `yield` prepares the block, what comes after looks at it."""

    def register(fn: Callable[[Bench], AsyncIterator[None]]) -> SetUp:
        assert name not in SET_UPS, f"two set-ups are named {name}"
        SET_UPS[name] = asynccontextmanager(fn)
        return SET_UPS[name]

    return register
