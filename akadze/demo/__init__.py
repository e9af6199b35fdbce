"""`akadze demo`: the product at work on a small shop, told on the screen and checked against the tables."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["run"]

#: What a shell reports of a command that Ctrl-C ended.
_INTERRUPTED = 128 + signal.SIGINT


def run(keep: bool = False) -> int:
    """Show the queue at work, on a PostgreSQL of its own or on that of ``AKADZE_DATABASE_URL``; return an exit code.

    0 if all that the demo promises held, 1 if not, 130 after Ctrl-C. Nothing is left behind, unless ``keep``: then the
    server goes on, and the last lines tell how to use it and how to stop it. Of a database of yours the demo wants
    that it has no schema ``shop``, and either no jobs or a name that is akadze or ends in _test; it removes what it has
    made there. Raises AkadzeError if no PostgreSQL can be started, the database is refused, or a worker does not work.
    """
    # The commands that have nothing to do with the demo do not wait for all this.
    from akadze.demo.screen import Screen

    screen = Screen()
    try:
        with _terminated_in_order():
            screen.text("akadze demo: a small shop and its jobs")
            from akadze.demo.show import show

            return show(screen, keep=keep)
    except KeyboardInterrupt:
        screen.end_view()
        screen.say("Stopped.")
        return _INTERRUPTED
    finally:
        screen.end_view()


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that workers and server are stopped."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
