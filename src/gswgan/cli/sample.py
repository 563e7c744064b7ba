"""`gswgan sample`: synthetic images from a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console
from gswgan.cli.export import check_free, writing
from gswgan.errors import RunError


def sample(
    run: Annotated[Path, typer.Argument(help="A run folder, or its release folder alone.")],
    n: Annotated[int, typer.Option("--n", "-n", help="How many images.")] = 1000,
    out: Annotated[Path, typer.Option(help="The .npz to write.")] = Path("synthetic.npz"),
    labels: Annotated[str, typer.Option(
        help="uniform over the classes, or released: in proportion to the noisy counts, already paid.")] = "uniform",
    seed: Annotated[int | None, typer.Option(help="Fixes the draw.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:  # fmt: skip
    """Draw images into an .npz with `images` (uint8) and `labels`. Costs no privacy, however many."""
    import numpy as np

    from gswgan.api import load

    if out.suffix != ".npz":
        raise RunError("out", str(out), "a name that ends in .npz", "For PNG or CSV: gswgan export.")
    check_free(out)
    images, their_labels = load(run, device=device).sample(n, labels, seed=seed)
    with writing(out) as aside:
        np.savez_compressed(aside, images=images, labels=their_labels)
    console.print(f"{n} images of {images.shape[1]}x{images.shape[2]}: {out}")
