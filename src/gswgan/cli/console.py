"""What the commands share: the console, progress bars, JSON output."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gswgan.errors import RunError, printable

Move = Callable[..., None]
"""move(done), or move(done, total, unit)."""


class PlainConsole(Console):
    """A console that prints no control characters from strings: names of files and classes may come from anybody."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does it."""
        super().print(*(printable(shown) if isinstance(shown, str) else shown for shown in objects), **options)


console = PlainConsole(highlight=False, soft_wrap=True, markup=False)
errors = PlainConsole(stderr=True, highlight=False, soft_wrap=True, markup=False)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.1f} {task.description}s/s" if task.speed else f"-- {task.description}s/s")


def needs_extra(command: str, *packages: str) -> None:
    """Refuse a command whose packages, from the eval extra, are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError(command, " and ".join(missing), "the eval extra", "It is not here: pip install 'gswgan[eval]'.")


def print_json(content: dict[str, Any]) -> None:
    """Machine-readable output on stdout, alone."""
    print(json.dumps(content, indent=1))


@contextmanager
def progress_bar(total: int, spent: Callable[[int], str]) -> Iterator[Move]:
    """A bar with step, speed, time left and epsilon spent so far; yields the function that moves it.

    Moved with another unit than "step", another bar comes first, for what is done before the first step.
    """
    columns = (
        TextColumn("{task.description} {task.completed:,.0f}/{task.total:,.0f}"), BarColumn(), _Speed(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[spent]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def move(done: int, of: int = total, unit: str = "step") -> None:
            if unit not in tasks:
                tasks[unit] = bar.add_task(unit, total=of, spent="")
            bar.update(tasks[unit], completed=done, spent=spent(done) if unit == "step" else "")

        yield move


@contextmanager
def work_bar(kept: str = "") -> Iterator[tuple[Callable[..., None], Callable[[str, float, float], None]]]:
    """A bar on stderr that weighs each piece of work by its estimated time; yields how to print and how to move it.

    Ctrl-C ends the command with exit code 130 and says what is kept.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
               TimeRemainingColumn())  # fmt: skip
    try:
        with Progress(*columns, console=errors) as bar:
            task = bar.add_task("", total=None)

            def move(what: str, done: float, total: float) -> None:
                bar.update(task, description=what, completed=done if total else 1, total=total or 1)

            yield bar.console.print, move
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command continues. {kept}".rstrip())
        raise typer.Exit(130) from None
