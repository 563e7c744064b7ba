"""`gswgan budget`: what all runs over the same data cost together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gswgan.cli.console import Json, console, print_json, table
from gswgan.errors import PlanError

if TYPE_CHECKING:
    from gswgan.run.budget import Budget


def budget(
    file: Annotated[Path, typer.Argument(help="The budget.")],
    epsilon: Annotated[float | None, typer.Option(help="Make a new budget with this budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="At which delta the budget holds.")] = None,
    sampled_share: Annotated[float | None, typer.Option(
        help="With --epsilon: the share of the budget for runs that are not plain Gaussian releases (ensemble, most "
        "baselines), from 0 to 1. Default: the first run decides, 0 or 1.")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Show a budget file, or make one: `gswgan budget FILE --epsilon 10 --delta 1e-5`.

    `gswgan train --budget FILE` enters a run before its first release, and refuses it where all runs together would go
    beyond the budget. The budget holds for all runs together, also where a run is chosen after seeing the results of
    others: plain Gaussian releases (preset kernel, dp-merf) add up by their noise, every other run takes its own
    epsilon and delta. Everything in a budget counts together. It names run folders: keep it private, and keep FILE.runs
    beside it.
    """
    from gswgan.run.budget import Budget

    if (epsilon is None) != (delta is None) or (epsilon is None and sampled_share is not None):
        given = (epsilon, delta, sampled_share)
        raise PlanError("budget", given, "both --epsilon and --delta", "One means nothing without the other.")
    if epsilon is None or delta is None:
        found = Budget(file)
    else:
        found = Budget.create(file, epsilon=epsilon, delta=delta, sampled_share=sampled_share)
    _show(found)
    if json:
        print_json(_content(found))


def _content(found: Budget) -> dict[str, Any]:
    runs = [
        {"when": run.when, "run": run.where, "what": run.what, "data": run.data, "repeated": run.repeated,
         "neighbours": run.relation[0], "unit": run.relation[1], "observer": run.relation[2],
         "takes": found.alone(run)}
        for run in found.runs
    ]  # fmt: skip
    stated = {"budget": str(found.path), "epsilon": found.epsilon, "delta": found.delta}
    return {**stated, "spent_epsilon": found.spent(), "used": found.words(), "runs": runs}


def _show(found: Budget) -> None:
    console.print(f"budget:    epsilon {found.epsilon:.4g} at delta {found.delta:g}, for all runs together")
    if not found.runs:
        console.print("used:      nothing")
        return
    neighbours, unit, observer = found.runs[0].relation
    how = {"replace-one": "replaced", "zeroed": "zeroed"}[neighbours]
    console.print(f"used:      {found.words()} (one {unit} {how}; observer: {observer})")
    console.print("What holds for all runs together is the budget: what is used so far was chosen in view of results.")
    rows = []
    marks = list(dict.fromkeys(budgeted.data for budgeted in found.runs))
    for budgeted in found.runs:
        mark = f"{marks.index(budgeted.data) + 1} ({budgeted.data[:8]})"
        rows.append(
            (budgeted.when[:16], budgeted.where, budgeted.what, mark, str(budgeted.repeated), found.alone(budgeted))
        )
    console.print(table(("entered (UTC)", "run", "what", "data", "repeated", "takes epsilon"), rows))
    if len(marks) > 1:
        console.print("Different data, or different views of the same: all of it is counted together.")
