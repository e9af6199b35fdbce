"""What the demo shows: lines that stay, and, for a person at a terminal, a live view of the queue below them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "View"]

#: Columns of a line when nobody can see how wide it gets.
_PIPED = 120
#: Columns of a table that can be cut.
_CUT = ("task", "last error", "result")
_COLOURS = {"succeeded": "green", "running": "yellow", "waiting": "bright_black", "retrying": "magenta"}


@dataclass(slots=True)
class View:
    """What the live view shows: a row of counts for each task, and the workers."""

    tasks: list[dict[str, Any]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)


class Screen:
    """Prints to stdout; a context manager that puts the terminal back in order."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False)
        self.console = console if console.is_terminal else Console(highlight=False, markup=False, width=_PIPED)
        self._begun = time.monotonic()
        self._view = View()
        self._live: Live | None = None
        self._scenes = 0

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(
                console=self.console, get_renderable=self._render, refresh_per_second=12, vertical_overflow="crop"
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_view()

    def end_view(self) -> None:
        """Take the live view away."""
        if self._live is not None:
            live, self._live = self._live, None
            live.transient = True
            with suppress(OSError):  # a terminal that is gone
                live.stop()

    def show(self, view: View) -> None:
        self._view = view

    def scene(self, title: str) -> None:
        """Begin a new part of the story."""
        self._scenes += 1
        self.console.print()
        self.console.print(Text.assemble((f"{self._scenes}  ", "bold cyan"), (title, "bold")))

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print a sentence below the title. A part may have a style."""
        self._print_indented(Text.assemble(*parts), "   ")

    def title(self, title: str) -> None:
        self.console.print()
        self.console.print(Text(title, style="bold cyan"))

    def verdict(self, kept: bool, promise: str, expected: str, found: str) -> None:
        """Print one promise, and whether it was kept."""
        mark = ("ok      ", "bold green") if kept else ("BROKEN  ", "bold red")
        self._print_indented(Text.assemble(mark, promise), "", hanging=8)
        both = f"expected and found: {found}" if expected == found else f"expected: {expected}; found: {found}"
        self._print_indented(Text(both, style="bright_black" if kept else "red"), "        ")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Print rows of (text, style). Where not all fits, tasks, errors and results are cut, numbers are not."""
        table = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, 2, 0, 0))
        for number, column in enumerate(columns):
            width = 4 if column in _CUT else max(len(column), *(len(row[number][0]) for row in rows))
            table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=width)
        for row in rows:
            table.add_row(*(Text(text, style) for text, style in row))
        self.console.print(table)

    def command(self, command: str) -> None:
        """Print a command, whole, so that it can be copied."""
        self.console.print(Text(f"   {command}", style="cyan"), soft_wrap=True)

    def text(self, text: str) -> None:
        """Print lines as they are."""
        self.console.print(text.rstrip("\n"), soft_wrap=True)

    def _print_indented(self, text: Text, indent: str, *, hanging: int = 0) -> None:
        width = max(20, self.console.width - len(indent))
        lines = text.wrap(self.console, width - hanging) if self.console.is_terminal else [text]
        for number, line in enumerate(lines):
            lead = indent if number == 0 else indent + " " * hanging
            self.console.print(Text.assemble(lead, line), soft_wrap=True)

    def _render(self) -> RenderableType:
        bar = max(6, min(30, self.console.width - 52))
        grid = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(4):
            grid.add_column(no_wrap=True, overflow="ellipsis")
        for task in self._view.tasks:
            grid.add_row(task["task"], _bar(task, bar), f"{task['succeeded']}/{task['jobs']}", _remarks(task))
        workers = Text.assemble(
            *((f"worker {pid} ", "green") for pid in self._view.workers),
            *((f"worker {pid} killed ", "red") for pid in self._view.killed),
            (f"{time.monotonic() - self._begun:.1f} s", "bright_black"),
        )
        return Group(Text(), grid, workers)


def _bar(task: dict[str, Any], width: int) -> Text:
    text = Text()
    left = width
    for state in ("succeeded", "running", "retrying"):
        # Rounded up: the one job that runs is what one looks for.
        cells = min(left, -(-task[state] * width // task["jobs"]))
        if state == "succeeded" and task[state] < task["jobs"]:
            cells = min(cells, width - 1)
        text.append("━" * cells, style=_COLOURS[state])
        left -= cells
    return text.append("─" * left, style=_COLOURS["waiting"])


def _remarks(task: dict[str, Any]) -> Text:
    words = (
        ("running", "yellow", "running"),
        ("waiting", "bright_black", "waiting"),
        ("retrying", "magenta", "to be retried"),
        ("failed", "red", "failed"),
        ("cancelled", "blue", "cancelled"),
        ("planned", "bright_black", "for later"),
    )
    return Text(", ").join(Text(f"{task[name]} {word}", style) for name, style, word in words if task[name])
