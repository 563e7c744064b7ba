"""What the commands share: the console, progress bars, JSON output."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gswgan.errors import RunError
from gswgan.terminal import PlainConsole

console = PlainConsole(highlight=False, soft_wrap=True, markup=False)
errors = PlainConsole(stderr=True, highlight=False, soft_wrap=True, markup=False)


def needs_extra(command: str, *packages: str) -> None:
    """Refuse a command whose packages, from the eval extra, are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError(command, " and ".join(missing), "the eval extra", "It is not here: pip install 'gswgan[eval]'.")


def print_json(content: dict[str, Any]) -> None:
    """Machine-readable output on stdout, alone."""
    print(json.dumps(content, indent=1))


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
