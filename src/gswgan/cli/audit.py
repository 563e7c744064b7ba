"""`gswgan audit`: attack the mechanism and see whether a stated epsilon survives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gswgan.cli.console import Json, console, print_json, table

if TYPE_CHECKING:
    from gswgan.audit.mechanism import Audit


def audit(
    method: Annotated[str, typer.Option(
        help="gswgan, dp-merf, dp-merf-ae, dp-sgd-gan or g-pate.")] = "gswgan",
    preset: Annotated[str | None, typer.Option(
        help="Of the method: for gswgan kernel, refined, ensemble, ensemble-alone or paper.")] = None,
    records: Annotated[int, typer.Option(help="Plan for so many records; they set the number of critics.")] = 60_000,
    claim: Annotated[float | None, typer.Option(
        help="The epsilon to put to the test, at the preset's delta. Default: what the preset itself states.")] = None,
    message: Annotated[bool, typer.Option("--message",
        help="Attack the message of one site of a federation (`federate --protect record`, untrusted server) as its "
        "bytes travel, in place of a method.")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Attack the mechanism of a method: `gswgan audit --preset paper --claim 9.99`.

    Worst-case neighbours go many times through runs as `gswgan train` makes them, on artificial images. How
    well the best distinguisher tells them apart is a lower bound on epsilon at 95 % confidence. A bound above the
    claim refutes it. A bound below proves nothing by itself: the argument in docs/proof.md does.
    """
    import torch

    from gswgan.audit.mechanism import audit_message, audit_method

    torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
    with Console(stderr=True).status("") as status:
        note = lambda text: status.update(f"audit: {text}")  # noqa: E731
        result = audit_message(claim=claim, note=note) if message else (
            audit_method(method, preset, records=records, claim=claim, note=note)
        )  # fmt: skip
    _show(result)
    if json:
        print_json(result.to_json())


def _show(result: Audit) -> None:
    rows = []
    for pair in result.pairs:
        own = "" if pair.trade_off is None else f"{pair.trade_off.epsilon:.4g}"
        free = f"{pair.distribution_free.epsilon:.4g}"
        rows.append((pair.name, f"{pair.trials:,}", f"{pair.steps:,}", free, own))
    header = ("neighbours", "trials per world", "releases", "epsilon at least", "by the trade-off curve")
    console.print(table(header, rows))
    if result.tie is not None:
        console.print(
            f"trials on one number per release; real runs have the same law (Kolmogorov-Smirnov p = {result.tie:.2g})"
        )
    stated = f"{result.method}, preset {result.preset}, with {result.records} records states {result.stated}"
    console.print(f"{stated}; {result.seconds:.0f} s")
    verdict = "REFUTED" if result.refuted else "not refuted"
    bound = f"epsilon is at least {result.lower_bound:.4g} at {result.confidence:.0%} confidence"
    console.print(f"claim: epsilon {result.claim:.4g} at delta {result.stated.delta:g}: {verdict} ({bound})")
