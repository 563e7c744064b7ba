"""`gswgan report`: a run, or several, on one page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console
from gswgan.errors import RunError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or their release folders alone.")],
    private: Annotated[bool, typer.Option("--private",
        help="Also what was measured on real data, and how training went. Such a page is not for release.")] = False,
    out: Annotated[Path | None, typer.Option(
        help="The folder to write report.html and figures/ to. Default: RUN/release (RUN/private with --private); "
             "beside a packed release RELEASE-report; for several runs ./report (./report-private).")] = None,
) -> None:  # fmt: skip
    """One self-contained report.html: the guarantee in plain words, the samples, what was released.

    The public page is made from release/ alone, so it may be published with it: `gswgan release` packs it. Nothing is
    written into a release that is packed already. Several runs are compared.
    """
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError("report", " and ".join(missing), "the eval extra", "It is not here: pip install 'gswgan[eval]'.")
    from gswgan.release.files import is_packed
    from gswgan.report.page import comparison_page, private_page, public_page
    from gswgan.report.private import read_private
    from gswgan.report.release import read_release
    from gswgan.run.folder import find_release

    folders = [find_release(run) for run in runs]
    if len({folder.release.resolve() for folder in folders}) < len(runs):
        raise RunError("runs", " ".join(map(str, runs)), "different runs", "Name each of them once.")
    if out is not None:
        out = out.resolve()  # the user named it, and may name a link
    else:
        several = Path("report-private" if private else "report")
        out = several if len(runs) > 1 else folders[0].private if private else folders[0].release
        if is_packed(out):
            out = out.resolve().with_name(f"{out.resolve().name}-report")
    if any(is_packed(place) for place in (out.resolve(), *out.resolve().parents)):
        raise RunError(
            "out", str(out), "a folder outside the packed release",
            "Its manifest names every file that belongs to it: leave --out out to write beside it.",
        )  # fmt: skip
    if private and any((place / "model.json").exists() for place in (out.resolve(), *out.resolve().parents)):
        raise RunError("out", str(out), "a folder outside every release", "A private page does not belong there.")
    measured = [read_private(run) for run in runs] if private else None
    releases = [read_release(run) for run in runs]
    if len(runs) > 1:
        page = comparison_page(list(zip(_names(runs), releases)), measured)
    else:
        page = public_page(releases[0]) if measured is None else private_page(releases[0], measured[0])
    written = page.write(out, private=private)
    note = "PRIVATE, not for release" if private else "made from release files alone: may be published with them"
    console.print(f"report:    {written} ({note})")
    console.print(f"figures:   {written.parent / 'figures'} (PNG and SVG)")
    if private and any(part.evaluation is None for part in measured or []):
        console.print("Utility is missing where it was not measured: gswgan evaluate RUN")


def _names(runs: list[Path]) -> list[str]:
    """A short name for each run: that of its folder, or all of its path where two are the same."""
    paths = [run.resolve() for run in runs]
    names = [path.parent.name if path.name == "release" else path.name for path in paths]
    return [str(run) if names.count(name) > 1 else name for run, name in zip(runs, names)]
