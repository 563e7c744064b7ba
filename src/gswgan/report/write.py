"""`gswgan report`: where the page of one run, or of several, is written, and what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gswgan.errors import RunError
from gswgan.report.page import comparison_page, single_page
from gswgan.report.private import read_private, read_records
from gswgan.report.release import read_release
from gswgan.run.folder import RunFolder, find_release, is_bundle


def write_report(runs: Sequence[Path], *, private: bool, out: Path | None) -> tuple[Path, bool]:
    """Write the page of these runs; returns its path, and whether a private page lacks an evaluation of some run."""
    folders = [find_release(run) for run in runs]
    if len({folder.release.resolve() for folder in folders}) < len(runs):
        raise RunError("runs", " ".join(map(str, runs)), "different runs", "Name each of them once.")
    out = _place(folders, private) if out is None else out.resolve()  # the user named it, and may name a link
    _check_place(out, private)
    measured = [read_private(run) for run in runs] if private else None
    releases = [read_release(run) for run in runs]
    if len(runs) > 1:
        page = comparison_page(list(zip(_names(runs), releases)), measured)
    else:
        mine = None if measured is None else measured[0]
        page = single_page(releases[0], mine, read_records(runs[0]) if private else None)
    return page.write(out, private=private), any(part.evaluation is None for part in measured or [])


def _place(folders: Sequence[RunFolder], private: bool) -> Path:
    """The folder where a page is written by default; beside a bundle, never inside."""
    if len(folders) > 1:
        return Path("report-private" if private else "report")
    out = folders[0].private if private else folders[0].release
    return out.resolve().with_name(f"{out.resolve().name}-report") if is_bundle(out) else out


def _check_place(out: Path, private: bool) -> None:
    inside = (out.resolve(), *out.resolve().parents)
    if any(is_bundle(place) for place in inside):
        raise RunError(
            "out", str(out), "a folder outside the bundle",
            "Its manifest names every file that belongs to it: leave --out out to write beside it.",
        )  # fmt: skip
    if private and any((place / "model.json").exists() for place in inside):
        raise RunError("out", str(out), "a folder outside every release", "A private page does not belong there.")


def _names(runs: Sequence[Path]) -> list[str]:
    """A short name for each run: that of its folder, or all of its path where two are the same."""
    paths = [run.resolve() for run in runs]
    names = [path.parent.name if path.name == "release" else path.name for path in paths]
    return [str(run) if names.count(name) > 1 else name for run, name in zip(runs, names)]
