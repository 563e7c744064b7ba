"""`gswgan release` packs what may be published as a bundle; `gswgan verify` checks a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console, errors
from gswgan.errors import RunError


def release(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path | None, typer.Option(
        help="The folder to make. Default: RUN-release, beside the run.")] = None,
) -> None:  # fmt: skip
    """Pack what may be published of a run as a bundle, a new folder with checksums, and verify it.

    Nothing but the files of a release is packed; where the run has a page by `gswgan report`, it is made again and
    packed as well. The same run gives the same bytes and the same digest. Publish the digest somewhere else than the
    bundle: with it, `gswgan verify` finds a bundle that was replaced or rebuilt.
    """
    from gswgan.release.files import PAGE, checksum
    from gswgan.release.pack import pack
    from gswgan.run.folder import MANIFEST

    out = out or run.resolve().with_name(f"{run.resolve().name}-release")
    for name in pack(run, out):
        again = " (`gswgan report` makes it again)" if name in (PAGE, "figures") else ""
        console.print(f"left out:  {name}, no file of a release{again}")
    if (out / PAGE).exists():
        console.print(f"page:      {PAGE}, made again from the bundle; `gswgan verify` does not check what it says")
    console.print(f"release:   {out}")
    console.print(f"digest:    {checksum(out / MANIFEST)}")
    console.print(f"check it:  gswgan verify {out} --digest {checksum(out / MANIFEST)}")


def verify(
    folder: Annotated[Path, typer.Argument(help="A bundle: the folder that `gswgan release` made.")],
    digest: Annotated[str | None, typer.Option(
        help="The digest that was published elsewhere: of the bundle, or of its ledger.")] = None,
) -> None:  # fmt: skip
    """Check a bundle without any private file: checksums, plan, ledger, epsilon, weights. Exit code 1 if it fails.

    Epsilon is computed again from the ledger. Without --digest, a bundle that somebody rebuilt as a whole passes.
    """
    from gswgan.release.verify import verify as check

    if digest is not None and re.fullmatch(r"[0-9a-f]{64}", digest) is None:
        raise RunError("digest", digest[:80], "64 hexadecimal digits", "Copy all of it, or leave --digest out.")
    verdict = check(folder, digest)
    for finding in verdict.findings:
        errors.print(f"gswgan: {folder}: {finding}")
    if verdict.findings:
        errors.print("gswgan: NOT VERIFIED.")
        raise typer.Exit(1)
    console.print(verdict.describe(digest))
