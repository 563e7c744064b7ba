"""`gswgan release`: the public part of a run in a folder of its own, with checksums. Same run, same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from gswgan.errors import PrivacyError, RunError
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.storage import sync_folder, write_durably
from gswgan.training.run_folder import find_release, write_json

MANIFEST = "manifest.json"

ALWAYS = ("card.md", "generator.safetensors", "ledger.jsonl", "model.json", "privacy.json", "samples.png")
"""In every release."""

SOMETIMES = ("embedding.safetensors", "federation.json")
"""Where the plan has one. Nothing else is ever packed: what is not on these lists may hold anything."""


def pack(run: Path, out: Path) -> list[str]:
    """Copy what may be published of a finished run to the new folder `out`, with its manifest; names what was left out.

    The folder stands under its name only after `verify` found nothing in it.
    """
    from gswgan.release.verify import verify

    folder = find_release(run)
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
        names = sorted(name for name in (*ALWAYS, *SOMETIMES) if (folder.release / name).exists())
        for name in names:
            write_durably(aside / name, (folder.release / name).read_bytes())
        write_json(
            aside / MANIFEST,
            {
                "plan": plan.digest(),
                "ledger_head": read_ledger(folder.ledger)[2],
                "files": {name: checksum(aside / name) for name in names},
            },
        )
        if findings := verify(aside).findings:
            raise RunError("run", str(run), "a release that can be verified", f"It cannot: {findings[0]}")
        aside.chmod(0o755)
        os.rename(aside, out)
        sync_folder(out.absolute().parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return sorted(path.name for path in folder.release.iterdir() if path.name not in names)


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
