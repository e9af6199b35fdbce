"""Several worker processes under one supervisor: one signal stops all, a process that dies is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final

from akadze._log import get_logger

logger = get_logger("akadze.worker")

#: Names the end of a pipe that a child reads: when it closes, the supervisor is gone, and the child stops.
_LIFELINE: Final = "AKADZE_LIFELINE"
#: The exit code for wrong use: the next process would end with it too.
_WRONG_USE: Final = 2
#: Seconds that a process has to live so that its end does not count as a failed start.
_STARTED: Final = 5.0
#: Seconds within which a process that ends by a signal, or for wrong use, was about to start: many, as a machine may be
#: slow. Later each one handles its signals, unless a body has taken them from it.
_STARTING: Final = 30.0
#: Failed starts in a row, over all processes together, after which the supervisor gives up if no process serves; times
#: their number.
_GIVE_UP: Final = 3
#: What the children get for the first signal, the second, and so on in turn, beginning with the one that came first.
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT)
#: Seconds before a process that died is replaced, at first; doubled each time that as many starts have failed as there
#: are processes.
_PAUSE: Final = 0.2


class Supervisor:
    """Runs ``count`` processes of one command until a signal comes or they cannot be started."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = list(command)
        self._count = count
        #: When each was started. Not by its pid, which the system may give again to the one that replaces it.
        self._children: dict[subprocess.Popen[bytes], float] = {}
        self._events: SimpleQueue[int | tuple[subprocess.Popen[bytes], float]] = SimpleQueue()
        #: Processes that the system could not start.
        self._missing = 0
        self._signals = 0
        self._first = signal.SIGTERM
        self._stopped = 0.0
        self._failed = 0
        self._code = 0

    def run(self) -> int:
        """Return the exit code: 0 if every process ended well after a signal, else that of one that did not."""
        reading, writing = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Nothing happens in the handler itself: a queue may be written to from anywhere.
            signal.signal(number, lambda received, _frame: self._events.put(received))
        try:
            for _ in range(self._count):
                self._start(reading)
            while self._children or self._missing:
                try:
                    event = self._events.get(timeout=self._pause() if self._missing else None)
                except Empty:
                    self._start_missing(reading)
                    continue
                if isinstance(event, int):
                    self._first = self._first if self._signals else signal.Signals(event)
                    self._pass_on()
                else:
                    self._ended(*event, reading)
        finally:
            os.close(writing)
            os.close(reading)
        return self._code

    def _start(self, lifeline: int) -> None:
        try:
            child = self._spawn(lifeline)
        except (OSError, RuntimeError) as error:  # there is no memory, or no room for one more process
            if not self._missing:
                logger.warning("a worker process cannot be started: %s; it is tried again", error)
            self._missing += 1
            self._failed += 1
            return
        self._children[child] = time.monotonic()

    def _spawn(self, lifeline: int) -> subprocess.Popen[bytes]:
        # The child begins with SIGINT held back, until it lets it through (`end_with_supervisor`).
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            child = subprocess.Popen(  # noqa: S603 - the command is this program's own
                self._command,
                env={**os.environ, _LIFELINE: str(lifeline)},
                pass_fds=[lifeline],
                # A Ctrl-C at the terminal comes to the supervisor alone, which passes it on once.
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            threading.Thread(target=self._watch, args=(child,), name=f"akadze-watch-{child.pid}", daemon=True).start()
        except RuntimeError:  # a thread counts as a process, and has no room
            child.kill()
            child.wait()
            raise
        return child

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        # When it ended: those before it in the queue may keep it waiting for long.
        self._events.put((child, time.monotonic()))

    def _start_missing(self, lifeline: int) -> None:
        if not self._children and self._failed >= _GIVE_UP * self._count:
            logger.error("no worker process can be started: giving up")
            self._code = 1
            self._missing = 0
            return
        missing, self._missing = self._missing, 0
        for _ in range(missing):
            self._start(lifeline)

    def _pass_on(self) -> None:
        # Two signals of one number are one to a process that had no time for the first; of two numbers they stay two.
        # A child takes a second one of the first number for the same request, which systemd has sent to it, too.
        number = _PASSED_ON[(_PASSED_ON.index(self._first) + self._signals) % len(_PASSED_ON)]
        self._stopped = self._stopped or time.monotonic()
        self._signals += 1
        self._missing = 0
        for child in self._children:
            child.send_signal(number)

    def _ended(self, child: subprocess.Popen[bytes], ended: float, lifeline: int) -> None:
        lived = ended - self._children.pop(child)
        code = child.returncode
        if self._signals:
            # One that was about to start ends by the signal itself, and has claimed nothing.
            # One that died before would have been replaced.
            if code and ended >= self._stopped and not (-code in _PASSED_ON and lived < _STARTING):
                self._code = self._code or _exit_code(code)
            return
        self._failed = self._failed + 1 if lived < _STARTED else 0
        # A process that has served long ends with that code only if a body ends it so.
        wrong_use = code == _WRONG_USE and lived < _STARTING
        if wrong_use or (self._failed >= _GIVE_UP * self._count and not self._any_serves()):
            logger.error("worker processes end right after their start, the last with %s: giving up", _named(code))
            self._code = _exit_code(code) or 1
            self._pass_on()
            return
        logger.warning("worker process %s ended with %s and is replaced", child.pid, _named(code))
        time.sleep(self._pause())
        self._restart_unless_stopped(lifeline)

    def _pause(self) -> float:
        return _PAUSE * 2.0 ** min(self._failed // self._count, _GIVE_UP)

    def _any_serves(self) -> bool:
        """Tell whether a process has started well: it may wait for a database in which no new one can start."""
        now = time.monotonic()
        return any(child.returncode is None and now - started >= _STARTED for child, started in self._children.items())

    def _restart_unless_stopped(self, lifeline: int) -> None:
        # A signal may have come meanwhile: it goes first.
        waiting = []
        while not self._events.empty():
            waiting.append(self._events.get())
        if not any(isinstance(event, int) for event in waiting):
            self._start(lifeline)
        for event in sorted(waiting, key=lambda event: not isinstance(event, int)):
            self._events.put(event)


def end_with_supervisor() -> bool:
    """In a child: ask this process to stop when its supervisor is gone, however it went. Tell whether it has one.

    SIGINT was held back while Python started, which makes a traceback of it. From here on, until the process serves, it
    ends the process as SIGTERM does, and as it ends a worker without a supervisor: by the handler of `akadze.cli.main`.
    """
    given = os.environ.pop(_LIFELINE, None)
    if given is None:
        return False
    lifeline = int(given)
    os.set_inheritable(lifeline, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="akadze-lifeline", daemon=True).start()
    return True


def command_of(arguments: Sequence[str], here: str) -> list[str]:
    """Return the command of one process for the arguments of ``akadze``, without ``--processes``.

    It looks for modules where this process does, whose current directory is ``here``.
    """
    kept: list[str] = []
    given = iter(arguments)
    for argument in given:
        if argument == "--processes":
            next(given, None)
        elif not argument.startswith("--processes="):
            kept.append(argument)
    # With -m the current directory would come before Python's own modules, unless -P keeps it out. The app finds it.
    safe = [] if sys.path[:1] in ([here], [""]) else ["-P"]
    return [sys.executable, *safe, "-m", "akadze", *kept]


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _named(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
