"""`gswgan privacy`: what a run costs, what noise a target needs, and what that means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import Json, console, print_json
from gswgan.errors import PrivacyError

app = typer.Typer(help="Account, calibrate, explain.", no_args_is_help=True)

_Neighbours = Annotated[str, typer.Option(help="replace-one: a record is exchanged; zeroed: a contribution becomes 0.")]
_Sampling = Annotated[str, typer.Option(help="poisson, all, or one (the paper's draw of one in 1/rate).")]


@app.command()
def account(
    run: Annotated[Path | None, typer.Argument(help="A run or release folder: accounts what its ledger holds.")] = None,
    preset: Annotated[str | None, typer.Option(help="Account for a preset as it would run.")] = None,
    method: Annotated[str | None, typer.Option(
        help="Account for a method as it would run (with --preset: its preset). Default: gswgan.")] = None,
    records: Annotated[int, typer.Option(help="With --preset or --method: number of records.")] = 60_000,
    noise_multiplier: Annotated[float | None, typer.Option(
        help="Noise std over the L2 bound of one contribution (half of the replace-one sensitivity).")] = None,
    rate: Annotated[float, typer.Option(help="Probability that a contributor takes part in a release.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of releases.")] = 1,
    delta: Annotated[float | None, typer.Option(help="Delta. Default: the preset's, or 1e-5.")] = None,
    neighbours: _Neighbours = "replace-one",
    sampling: _Sampling = "poisson",
    json: Json = False,
) -> None:  # fmt: skip
    """Epsilon of a RUN, of a preset, or of a noise multiplier, with all that it means nothing without."""
    _check_one(run is not None, preset is not None or method is not None, noise_multiplier is not None)
    from gswgan.report.account import Releases, account_preset, account_run

    if run is not None:
        content = account_run(run)[1]
    elif noise_multiplier is None:
        content = account_preset(method or "gswgan", preset, records, delta)
    else:
        releases = Releases(rate=rate, steps=steps, neighbours=neighbours, sampling=sampling)
        content = releases.account(noise_multiplier, 1e-5 if delta is None else delta)
    _show(content)
    if json:
        print_json(content)


@app.command()
def calibrate(
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")] = 10.0,
    delta: Annotated[float, typer.Option(help="Target delta.")] = 1e-5,
    rate: Annotated[float, typer.Option(help="Probability that a contributor takes part in a release.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of releases.")] = 1,
    neighbours: _Neighbours = "replace-one",
    sampling: _Sampling = "poisson",
    json: Json = False,
) -> None:
    """The smallest noise multiplier for a target; accounting it back never gives more than the target."""
    from gswgan.report.account import Releases

    releases = Releases(rate=rate, steps=steps, neighbours=neighbours, sampling=sampling)
    content = releases.calibrate(epsilon, delta)
    multiplier = content["noise_multiplier"]
    console.print(f"noise multiplier {multiplier:g} (noise std over the L2 bound of one contribution)")
    console.print(f"gives epsilon {content['epsilon']:.6g} at delta {delta:g} ({neighbours}; sampling {sampling})")
    if json:
        print_json(content)


@app.command()
def explain(run: Annotated[Path, typer.Argument(help="A run or release folder.")], json: Json = False) -> None:
    """What the guarantee of a run means in plain words, what it covers and what it does not cover."""
    from gswgan.report.account import account_run
    from gswgan.report.explain import explanation

    plan, content = account_run(run)
    words = explanation(plan, content)
    console.print(words)
    if json:
        print_json({**content, "explanation": words})


def _check_one(*chosen: bool) -> None:
    if sum(chosen) != 1:
        raise PrivacyError(
            "arguments", sum(chosen), "exactly one of RUN, --preset (or --method) or --noise-multiplier",
            "For example: gswgan privacy account --preset paper.",
        )  # fmt: skip


def _show(content: dict[str, Any]) -> None:
    from gswgan.run.publish import cost_from_statement

    cost = cost_from_statement(content)
    if content.get("void"):
        console.print(f"NO GUARANTEE: {content['void']}.")
    if cost is None:
        return
    console.print(("With a secret key it would read: " if content.get("void") else "") + str(cost))
    console.print(f"sampling: {content['sampling']}; accountant: {content['accountant']}")
    for line in content.get("planned", []):
        console.print(line)
    for key, meaning in (("claimed", "claimed by the paper's accounting, NOT a guarantee"),
                         ("lower_bound", "no analysis of this run can prove less than"),
                         ("as_printed", "with all inner answers visible, as Algorithm 2 is printed")):  # fmt: skip
        if content.get(key):
            console.print(f"{meaning}: {content[key]['epsilon']:.5g}")
