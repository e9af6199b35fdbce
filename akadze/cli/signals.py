"""What SIGTERM and SIGINT do while a worker serves, and afterwards."""

from __future__ import annotations

import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def watch_signals(loop: AbstractEventLoop, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
    """Call ``stop`` on the loop at the first signal and ``hurry`` at each further one; nothing else happens in them."""
    received = 0

    def on_signal() -> None:
        nonlocal received
        received += 1
        if received == 1:
            stop()
        else:
            hurry()

    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, on_signal)
        except (NotImplementedError, ValueError, RuntimeError):
            # Not on Windows' loops. What the interpreter runs may come between any two steps of the loop's own.
            def pass_on(_number: int, _frame: FrameType | None) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(on_signal)

            signal.signal(number, pass_on)


def ignore_signals(loop: AbstractEventLoop) -> None:
    """Let the process end by itself: it was asked to stop, or stops already."""
    for number in _SIGNALS:
        with suppress(NotImplementedError):
            # The loop sets the default action again when it takes its handler away: here, not when it is closed.
            loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
