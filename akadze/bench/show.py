"""How the figures are shown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.table import Table

if TYPE_CHECKING:
    from akadze.bench.measure import Figure

_BAR: Final = 12  # characters


class Progress:
    """A bar on stderr, for a person at a terminal only."""

    def __init__(self, steps: int) -> None:
        self._progress = RichProgress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._task = self._progress.add_task("measuring", total=steps)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)


def show(figures: Sequence[Figure], settings: Mapping[str, Any], rounds: int) -> None:
    """Print the medians, with a bar for the part of plain SQL's rate that akadze reaches."""
    table = Table(title="akadze beside plain SQL on this server", title_justify="left")
    table.add_column("measure")
    table.add_column("akadze", justify="right")
    table.add_column("plain SQL", justify="right")
    table.add_column("part of it", justify="left")
    for figure in figures:
        akadze, plain = figure.medians
        table.add_row(
            figure.name,
            _amount(akadze, figure.unit),
            _amount(plain, figure.unit) if plain is not None else "",
            _bar(akadze / plain) if plain else "",
        )
    console = Console()
    console.print(table)
    taken = "One round" if rounds == 1 else f"Medians of {rounds} rounds"
    console.print(
        f"{taken}. PostgreSQL {settings['version']}, fsync={settings['fsync']}, "
        f"synchronous_commit={settings['synchronous_commit']}; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. Plain SQL is one bare table without any feature of a queue.",
        highlight=False,
    )


def _amount(value: float, unit: str) -> str:
    text = f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.2f}"
    return f"{text} {unit}"


def _bar(part: float) -> str:
    filled = min(round(part * _BAR), _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {part:.0%}"
