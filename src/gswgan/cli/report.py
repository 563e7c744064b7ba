"""`gswgan report`: a run, or several, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import Json, console, needs_extra, print_json


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or their release folders alone.")],
    private: Annotated[bool, typer.Option("--private",
        help="Also what was measured on real data, and how training went. Such a page is not for release.")] = False,
    out: Annotated[Path | None, typer.Option(
        help="The folder to write report.html and figures/ to. Default: RUN/release (RUN/private with --private); "
             "beside a bundle BUNDLE-report; for several runs ./report (./report-private).")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """One self-contained report.html: the guarantee in plain words, the samples, what was released.

    The public page is made from release/ alone, so it may be published with it: `gswgan release` packs it. Nothing is
    written into a bundle. Several runs are compared.
    """
    needs_extra("report", "jinja2", "matplotlib")
    from gswgan.report.write import write_report

    written, unmeasured = write_report(runs, private=private, out=out)
    note = "PRIVATE, not for release" if private else "made from release files alone: may be published with them"
    console.print(f"report:    {written} ({note})")
    console.print(f"figures:   {written.parent / 'figures'} (PNG and SVG)")
    if unmeasured:
        console.print("Utility is missing where it was not measured: gswgan evaluate RUN")
    if json:
        figures = str(written.parent / "figures")
        print_json({"report": str(written), "figures": figures, "private": private, "lacks_evaluation": unmeasured})
