"""What SIGTERM and SIGINT do while a worker serves, and afterwards."""

from __future__ import annotations

import os
import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def watch_signals(
    loop: AbstractEventLoop, stop: Callable[[], None], hurry: Callable[[], None], *, supervised: bool = False
) -> None:
    """Call ``stop`` on the loop at the first signal and ``hurry`` at each further one; nothing else happens in them.

    ``supervised``: the signals are passed on by akadze's own supervisor, the second as another number than the first.
    One of the same number is the first once more: systemd sends it to all processes of a service.
    """
    received: list[int] = []
    _leave_to_children()

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            stop()
        elif not supervised or number != received[0]:
            hurry()

    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, on_signal, number)
        except (NotImplementedError, ValueError, RuntimeError):
            # Not on Windows' loops. What the interpreter runs may come between any two steps of the loop's own.
            def pass_on(received_number: int, _frame: FrameType | None) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(on_signal, received_number)

            signal.signal(number, pass_on)


#: What a thread that forks lets through otherwise.
_MASK = threading.local()


@cache
def _leave_to_children() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)


def _hold() -> None:
    _MASK.kept = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _MASK.kept)


def _forget() -> None:
    """Give a process that a task has forked the signals of any process.

    It would swallow them, and in Python 3.11 it also shares the pipe by which they wake the loop: the worker would take
    a signal to its child, such as the end of a multiprocessing.Pool, for one to itself.
    """
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _release()  # one that came meanwhile comes now, and ends the process: an error in here would be lost
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_signals(loop: AbstractEventLoop) -> None:
    """Let the process end by itself: it was asked to stop, or stops already."""
    for number in _SIGNALS:
        with suppress(NotImplementedError):
            # The loop sets the default action again when it takes its handler away: here, not when it is closed.
            loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
