"""What the verbs share: the console, the progress bar, JSON output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

console = Console(highlight=False, soft_wrap=True, markup=False)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "-- steps/s")


def print_json(content: dict[str, Any]) -> None:
    """Machine-readable output on stdout, alone."""
    print(json.dumps(content, indent=1))


@contextmanager
def progress_bar(total: int, spent: Callable[[int], str]) -> Iterator[Callable[[int], None]]:
    """A bar with step, speed, time left and epsilon spent so far; yields the function that moves it."""
    columns = (
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        _Speed(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[spent]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, spent=spent(0))
        yield lambda done: bar.update(task, completed=done, spent=spent(done))
