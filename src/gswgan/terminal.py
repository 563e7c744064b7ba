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
"""move(done), or move(done, total, what)."""


class PlainConsole(Console):
    """A console that prints no control characters from strings: names of files and classes may come from anybody."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does it."""
        super().print(*(printable(shown) if isinstance(shown, str) else shown for shown in objects), **options)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.1f} {task.description}s/s" if task.speed else f"-- {task.description}s/s")


@contextmanager
def terminal_bar(console: Console, total: int, unit: str, spent: Callable[[int], str]) -> Iterator[Move]:
    """A bar with steps (or what `unit` names), speed, time left and epsilon spent so far; yields what moves it.

    Moved with another unit, it shows another bar, for what is done before the first step or after the last.
    """
    columns = (
        TextColumn("{task.description} {task.completed:,.0f}/{task.total:,.0f}"), BarColumn(), _Speed(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[spent]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def move(done: int, of: int = total, what: str = unit) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of, spent="")
            bar.update(tasks[what], completed=done, spent=spent(done) if what == unit else "")

        yield move
