"""`gswgan release` and `gswgan verify`: what is published, and what others can check of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console
from gswgan.errors import RunError


def release(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path | None, typer.Option(
        help="The folder to make. Default: RUN-release, beside the run.")] = None,
) -> None:  # fmt: skip
    """Pack what may be published of a run into a folder of its own, with checksums, and verify it.

    Nothing but the files of a release is packed; where the run has a page by `gswgan report`, it is made again and
    packed as well. The same run gives the same bytes and the same digest. Publish the digest somewhere else than the
    folder: with it, `gswgan verify` finds a release that was replaced or rebuilt.
    """
    from gswgan.release.files import MANIFEST, PAGE, checksum
    from gswgan.release.pack import pack

    root = run.resolve()
    out = out or root.with_name(f"{root.name}-release")
    left_out = pack(run, out)
    for name in left_out:
        again = " (`gswgan report` makes it again)" if name in (PAGE, "figures") else ""
        console.print(f"left out:  {name}, no file of a release{again}")
    if (out / PAGE).exists():
        console.print(
            f"page:      {PAGE}, made again from the packed files; `gswgan verify` does not vouch for its words"
        )
    console.print(f"release:   {out}")
    console.print(f"digest:    {checksum(out / MANIFEST)}")
    console.print(f"check it:  gswgan verify {out} --digest {checksum(out / MANIFEST)}")


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder that `gswgan release` packed.")],
    digest: Annotated[str | None, typer.Option(
        help="The digest that was published elsewhere: of the release, or of its ledger.")] = None,
) -> None:  # fmt: skip
    """Check a release without any private file: checksums, plan, ledger, epsilon, weights. Exit code 1 if it fails.

    Epsilon is computed again from the ledger. Without --digest, a release that somebody rebuilt as a whole passes.
    """
    from gswgan.privacy.accountant import NOT_RECOMPUTED
    from gswgan.release.verify import UNSEEN
    from gswgan.release.verify import verify as look
    from gswgan.report.explain import explanation

    if digest is not None and re.fullmatch(r"[0-9a-f]{64}", digest) is None:
        raise RunError("digest", digest[:80], "64 hexadecimal digits", "Copy all of it, or leave --digest out.")
    verdict = look(folder, digest)
    for finding in verdict.findings:
        print(f"gswgan: {folder}: {finding}", file=sys.stderr)
    if verdict.findings:
        print("gswgan: NOT VERIFIED.", file=sys.stderr)
        raise typer.Exit(1)
    assert verdict.plan is not None
    assert verdict.cost is not None
    console.print(explanation(verdict.plan, {**verdict.statement, "accountant": verdict.cost.accountant}))
    if verdict.statement["accountant"] != verdict.cost.accountant:
        console.print(f"\nIts files say {NOT_RECOMPUTED!r}: epsilon was computed now, and is what they state.")
    repeated = f", {verdict.repeated} of them repeated after a stop and counted" if verdict.repeated else ""
    console.print(
        "\nVERIFIED: every file is as the manifest says and as gswgan writes it; weights, embedding, picture and card\n"
        "fit the plan. The ledger is unbroken and has every planned release; epsilon above was computed from it.\n"
        "\nWhat no verifier can see"
    )
    for line in UNSEEN:
        console.print(f"  - {line}")
    console.print()
    if verdict.page:
        console.print(f"page:      report.html, {verdict.page}")
    console.print(f"releases:  {verdict.releases}{repeated}")
    console.print(f"ledger:    {verdict.head} (head)")
    compared = {
        verdict.digest: "as published: every byte of the release",
        verdict.head: "NOT compared; the ledger is the published one: its plan and releases, not the weights",
    }
    none = "NOT compared with one published elsewhere: pass --digest to find a release that was rebuilt as a whole"
    console.print(f"digest:    {verdict.digest} ({none if digest is None else compared[digest]})")
