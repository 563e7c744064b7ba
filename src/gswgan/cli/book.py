"""`gswgan book`: what all runs over the same data cost together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gswgan.cli.console import console
from gswgan.errors import PlanError


def book(
    file: Annotated[Path, typer.Argument(help="The book.")],
    epsilon: Annotated[float | None, typer.Option(help="Make a new book with this budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="At which delta the budget holds.")] = None,
) -> None:
    """Show a privacy book, or make one: `gswgan book FILE --epsilon 10 --delta 1e-5`.

    `gswgan train --book FILE` enters a run before its first release, and refuses it where all runs together would go
    beyond the budget. Everything in a book counts together. It names run folders: keep it private.
    """
    from gswgan.training.book import Book

    if (epsilon is None) != (delta is None):
        raise PlanError(
            "budget", (epsilon, delta), "both --epsilon and --delta", "One means nothing without the other."
        )
    found = Book(file) if epsilon is None or delta is None else Book.create(file, epsilon=epsilon, delta=delta)
    console.print(f"budget:    epsilon {found.epsilon:.4g} at delta {found.delta:g}, for all runs together")
    if not found.runs:
        console.print("spent:     nothing")
        return
    neighbours, unit, observer = found.runs[0].relation
    how = {"replace-one": "replaced", "zeroed": "zeroed"}[neighbours]
    spent = found.spent()
    console.print(f"spent:     epsilon {spent:.4g} at delta {found.delta:g} (one {unit} {how}; observer: {observer})")
    table = Table("entered (UTC)", "run", "what", "data", "repeated", f"epsilon alone, at delta {found.delta:g}")
    marks = list(dict.fromkeys(booked.data for booked in found.runs))
    for booked in found.runs:
        mark = f"{marks.index(booked.data) + 1} ({booked.data[:8]})"
        alone = f"{found.alone(booked):.4g}"
        table.add_row(booked.when[:16], booked.where, booked.what, mark, str(booked.repeated), alone)
    console.print(table)
    if len(marks) > 1:
        console.print("Different data, or different views of the same: all of it is counted together.")
