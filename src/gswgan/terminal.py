"""A console and a progress bar for terminals. It needs no torch, so that `gswgan --help` is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

from gswgan.errors import printable

Move = Callable[..., None]
"""move(done), or move(done, total, unit)."""


class PlainConsole(Console):
    """A console that prints no control characters from strings: names of files and classes may come from anybody."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does it."""
        super().print(*(printable(shown) if isinstance(shown, str) else shown for shown in objects), **options)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.1f} {task.description}s/s" if task.speed else f"-- {task.description}s/s")


@contextmanager
def progress_bar(total: int, spent: Callable[[int], str], console: Console) -> Iterator[Move]:
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
