"""`gswgan release` packs what may be published as a bundle; `gswgan verify` checks a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gswgan.cli.console import Json, console, errors, print_json
from gswgan.cli.progress import progress_bar
from gswgan.errors import RunError

if TYPE_CHECKING:
    from gswgan.release.verdict import Verdict


def release(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path | None, typer.Option(
        help="The folder to make. Default: RUN-release, beside the run.")] = None,
    samples: Annotated[int | None, typer.Option(metavar="N",
        help="Put a set of N images beside the generator, as samples.npz.")] = None,
    device: Annotated[str, typer.Option(help="That draws them: cpu, cuda or auto.")] = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """Pack what may be published of a run as a bundle, a new folder with checksums, and verify it.

    Nothing but the files of a release is packed; where the run has a page by `gswgan report`, it is made again and
    packed as well. The same run gives the same bytes and the same digest (with --samples: on the same machine). Publish
    the digest somewhere else than the bundle: with it, `gswgan verify` finds a bundle that was replaced or rebuilt.
    """
    from gswgan.release.files import PAGE, SAMPLES, checksum
    from gswgan.release.pack import pack
    from gswgan.run.folder import MANIFEST

    out = out or run.resolve().with_name(f"{run.resolve().name}-release")
    if samples is None:
        left_out = pack(run, out)
    else:
        with progress_bar(samples, "image") as move:
            left_out = pack(run, out, samples=samples, device=device, progress=move)
    for name in left_out:
        again = " (`gswgan report` makes it again)" if name in (PAGE, "figures") else ""
        console.print(f"left out:  {name}, no file of a release{again}")
    if (out / PAGE).exists():
        console.print(f"page:      {PAGE}, made again from the bundle; `gswgan verify` does not check what it says")
    if samples is not None:
        console.print(f"samples:   {SAMPLES}, {samples:,} images")
    console.print(f"release:   {out}")
    digest = checksum(out / MANIFEST)
    console.print(f"digest:    {digest}")
    console.print(f"check it:  gswgan verify {out} --digest {digest}")
    if json:
        has_page = (out / PAGE).exists()
        made = {"page": has_page, "samples": samples, "left_out": list(left_out)}
        print_json({"release": str(out), "digest": digest, **made})


def verify(
    folder: Annotated[Path, typer.Argument(help="A bundle: the folder that `gswgan release` made.")],
    digest: Annotated[str | None, typer.Option(
        help="The digest that was published elsewhere: of the bundle, or of its ledger.")] = None,
    site: Annotated[Path | None, typer.Option(metavar="LEDGER",
        help="At a site of a federated round: its own ledger.jsonl, or its state folder. Whether it and the public "
        "statement agree.")] = None,
    json: Json = False,
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
    else:
        console.print(verdict.describe(digest))
    own = None if site is None or verdict.findings else _own_ledger(site, folder, verdict)
    if json:
        print_json(_content(verdict, digest) | ({} if own is None else {"site": own}))
    if verdict.findings or (own is not None and own["disagreements"]):
        raise typer.Exit(1)


def _own_ledger(site: Path, folder: Path, verdict: Verdict) -> dict[str, Any]:
    """Whether a site's own ledger agrees with the statement of a verified bundle; printed, and as plain data."""
    from gswgan.federated.own_ledger import OwnLedger

    assert verdict.plan is not None
    own = OwnLedger(site, folder / "ledger.jsonl", verdict.plan)
    found = list(own.disagreements(verdict.statement))
    if own.is_torn:
        console.print(f"site:      the last line of {own.path} is torn: the answer that it announces was not sent")
    for one in found:
        errors.print(f"gswgan: {site}: {one}.")
    if not found:
        console.print(own.describe(), markup=False)
    return {"ledger": str(own.path), "answers": len(own.entries), "epsilon": own.epsilon, "torn": own.is_torn,
            "disagreements": found}  # fmt: skip


def _content(verdict: Verdict, expected: str | None) -> dict[str, Any]:
    found = [{"where": one.where, "what": one.what, "means": one.means} for one in verdict.findings]
    compared = {None: None, verdict.digest: "bundle", verdict.head: "ledger"}
    return {
        "verified": not found, "findings": found, "digest": verdict.digest or None, "ledger": verdict.head or None,
        "compared": compared.get(expected), "releases": verdict.releases, "repeated": verdict.repeated,
        "privacy": None if verdict.cost is None else {**verdict.statement, **verdict.cost.to_json()},
    }  # fmt: skip
