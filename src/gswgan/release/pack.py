"""`gswgan release`: the public part of a run as a bundle with checksums. The same run gives the same bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gswgan.errors import PrivacyError, RunError
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.storage import sync_folder, write_durably
from gswgan.release.files import ALWAYS, PAGE, SAMPLES, SOMETIMES, checksum, plain_size, read_plain
from gswgan.release.page import can_make_page, page_of
from gswgan.release.samples import draw_samples
from gswgan.release.verify import verify
from gswgan.run.folder import MANIFEST, find_release, write_json
from gswgan.run.over import check_not_over
from gswgan.run.released import load


def pack(
    run: Path,
    out: Path,
    *,
    samples: int | None = None,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Copy what may be published of a finished run to the new bundle `out`, with its manifest; names what was left out.

    The bundle gets its name only after `verify` found nothing wrong in it. Where the run has a page by `gswgan
    report`, the page is made again from the bundle, and becomes part of it. So does a set of `samples` images, which
    are drawn on the device; `progress` is told how many are drawn.
    """
    folder = find_release(run)
    present = [name for name in (*ALWAYS, *SOMETIMES) if os.path.lexists(folder.release / name)]
    for name in present:
        if plain_size(folder.release / name) is None:
            raise RunError("run", str(folder.release / name), "a plain file", "Take whatever it is out of release/.")
    check_not_over(folder)
    if not folder.is_finished:
        raise RunError("run", str(run), "a finished run", "Its ledger is still growing: gswgan train --resume first.")
    plan = folder.plan()
    if plan.void is not None or plan.guarantee is None:
        raise PrivacyError("run", str(run), "a run with a guarantee", f"Not for release: it was {plan.void}.")
    if os.path.lexists(out):
        raise RunError("out", str(out), "a folder that does not exist yet", "Choose another --out.")
    if not out.absolute().parent.is_dir():
        raise RunError("out", str(out), "a path in a folder that exists", "Make the folder first.")
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    try:
        for name in present:
            write_durably(aside / name, read_plain(folder.release / name))
        about: dict[str, Any] = {"plan": plan.digest(), "ledger_head": read_ledger(folder.ledger)[2]}
        if samples is not None:
            content, about["samples"] = draw_samples(load(run, device=device), samples, progress)
            write_durably(aside / SAMPLES, content)
        _seal(aside, about)
        if findings := verify(aside, plan=plan).findings:
            raise RunError("run", str(run), "a bundle that can be verified", f"It cannot: {findings[0]}")
        if plain_size(folder.release / PAGE) is not None and can_make_page():
            write_durably(aside / PAGE, page_of(aside))
            _seal(aside, about)
        packed = {path.name for path in aside.iterdir()}
        aside.chmod(0o755)
        os.rename(aside, out)
        sync_folder(out.absolute().parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return sorted(path.name for path in folder.release.iterdir() if path.name not in packed)


def _seal(folder: Path, about: dict[str, Any]) -> None:
    """Write the manifest of all files in the folder."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    write_json(folder / MANIFEST, {**about, "files": {name: checksum(folder / name) for name in names}})
