"""What the commands share: the console, tables, JSON output."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from gswgan.errors import RunError, printable
from gswgan.terminal import PlainConsole

console = PlainConsole(highlight=False, soft_wrap=True, markup=False)
errors = PlainConsole(stderr=True, highlight=False, soft_wrap=True, markup=False)


def needs_extra(command: str, *packages: str) -> None:
    """Refuse a command whose packages, from the eval extra, are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError(command, " and ".join(missing), "the eval extra", "It is not here: pip install 'gswgan[eval]'.")


def _text_to_stderr(wanted: bool) -> bool:
    console.stderr = wanted
    return wanted


Json = Annotated[bool, typer.Option(
    "--json", callback=_text_to_stderr, help="One JSON object on stdout; everything else goes to stderr.")]  # fmt: skip
"""The option of every command that states something. What is printed to `console` then goes to stderr."""


def print_json(content: dict[str, Any]) -> None:
    """Machine-readable output on stdout, alone."""
    print(json.dumps(content, indent=1))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows below a header, each column as wide as its widest cell: nothing is cut, however narrow the terminal is."""
    shown = [[printable(cell, keep="") for cell in row] for row in (header, *rows)]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*shown)]
    shown.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths)).rstrip() for row in shown
    )
