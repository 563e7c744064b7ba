"""How far a command is: a bar in a terminal, a line every so often in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gswgan.cli.console import console, errors
from gswgan.terminal import Move, terminal_bar

SECONDS_PER_LINE = 30.0
"""Where the output is no terminal: the least time between two lines, but for the last one."""


class _Lines:
    """Lines about one piece of work, for a log; it begins where it is when this is made."""

    def __init__(self, out: Console, begin: float) -> None:
        self._out, self._begin = out, begin
        self._began = self._last = monotonic()
        self._ended = False

    def move(self, done: float, total: float, what: str, unit: str = "", also: str = "") -> None:
        """Print a line if one is due: what is done, units per second, the time so far and the time left."""
        now, ended = monotonic(), done >= total
        if self._ended or (not ended and now - self._last < SECONDS_PER_LINE):
            return
        self._last, self._ended = now, ended
        past, moved = now - self._began, done - self._begin
        parts = [what]
        if past > 0 and moved > 0:
            parts += [f"{moved / past:,.1f} {unit}s/s"] if unit else []
            parts += (
                [_clock(past)] if ended else [f"{_clock(past)}, about {_clock(past * (total - done) / moved)} left"]
            )
        self._out.print(", ".join([*parts, also] if also else parts))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


@contextmanager
def progress_bar(total: int, unit: str = "step", spent: Callable[[int], str] = lambda done: "") -> Iterator[Move]:
    """Show steps (or what `unit` names), speed, time left and epsilon spent so far; yields the function to call.

    Called with another unit, it shows another bar, for what is done before the first step or after the last.
    """
    if not console.is_terminal:
        logged: dict[str, _Lines] = {}

        def log(done: int, of: int = total, what: str = unit) -> None:
            if what not in logged:
                logged[what] = _Lines(console, done)
            logged[what].move(done, of, f"{what} {done:,}/{of:,}", what, spent(done) if what == unit else "")

        yield log
        return
    with terminal_bar(console, total, unit, spent) as move:
        yield move


@contextmanager
def work_bar(kept: str = "") -> Iterator[tuple[Callable[..., None], Callable[[str, float, float], None]]]:
    """A bar on stderr that weighs each piece of work by its estimated time; yields how to print and how to move it.

    Ctrl-C ends the command with exit code 130 and says what is kept.
    """
    columns: Any = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
                    TimeRemainingColumn())  # fmt: skip
    try:
        if not errors.is_terminal:
            lines = _Lines(errors, 0.0)

            def log(what: str, done: float, total: float) -> None:
                lines.move(done, total, f"{what}, {done / total if total else 1:.0%}")

            yield errors.print, log
            return
        with Progress(*columns, console=errors) as bar:
            task = bar.add_task("", total=None)

            def move(what: str, done: float, total: float) -> None:
                bar.update(task, description=what, completed=done if total else 1, total=total or 1)

            yield bar.console.print, move
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command continues. {kept}".rstrip())
        raise typer.Exit(130) from None
