"""`gswgan release`: the public part of a run in a folder of its own, with checksums. Same run, same bytes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from gswgan.errors import PrivacyError, RunError
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.storage import sync_folder, write_durably
from gswgan.release.files import ALWAYS, MANIFEST, PAGE, SOMETIMES, checksum, plain_size, read_plain
from gswgan.run.folder import find_release, write_json


def pack(run: Path, out: Path) -> list[str]:
    """Copy what may be published of a finished run to the new folder `out`, with its manifest; names what was left out.

    The folder stands under its name only after `verify` found nothing in it. Where the run has a page by `gswgan
    report`, the page is made again from the packed files, and packed as well.
    """
    from gswgan.release.verify import verify

    folder = find_release(run)
    present = [name for name in (*ALWAYS, *SOMETIMES) if os.path.lexists(folder.release / name)]
    for name in present:
        if plain_size(folder.release / name) is None:
            raise RunError("run", str(folder.release / name), "a plain file", "Take whatever it is out of release/.")
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
        about = {"plan": plan.digest(), "ledger_head": read_ledger(folder.ledger)[2]}
        _seal(aside, about)
        if findings := verify(aside).findings:
            raise RunError("run", str(run), "a release that can be verified", f"It cannot: {findings[0]}")
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


def can_make_page() -> bool:
    """Whether what `gswgan report` needs is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("jinja2", "matplotlib"))


def page_of(release: Path) -> bytes:
    """The page that `gswgan report` makes of a release."""
    from gswgan.report.page import public_page
    from gswgan.report.release import read_release

    return public_page(read_release(release)).html.encode()


def _seal(folder: Path, about: dict[str, str]) -> None:
    """The manifest of all files in the folder."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    write_json(folder / MANIFEST, {**about, "files": {name: checksum(folder / name) for name in names}})
