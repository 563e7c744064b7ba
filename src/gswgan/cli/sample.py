"""`gswgan sample`: synthetic images from a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console
from gswgan.errors import RunError


def sample(
    run: Annotated[Path, typer.Argument(help="A run folder, or its release folder alone.")],
    n: Annotated[int, typer.Option("--n", "-n", help="How many images.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="The .npz to write. Default: synthetic.npz here.")] = None,
    labels: Annotated[str, typer.Option(
        help="uniform over the classes, or released: in proportion to the noisy counts, already paid.")] = "uniform",
    seed: Annotated[int | None, typer.Option(help="Fixes the draw.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:  # fmt: skip
    """Draw images into an .npz with `images` (uint8) and `labels`. Costs no privacy, however many."""
    import numpy as np

    from gswgan.synthesizer import load

    target = out or Path("synthetic.npz")
    if target.exists():
        raise RunError("out", str(target), "a file that does not exist yet", "Choose another --out.")
    if target.suffix != ".npz":
        raise RunError("out", str(target), "a name that ends in .npz", "For PNG or CSV: gswgan export.")
    images, their_labels = load(run, device=device).sample(n, labels, seed=seed)
    np.savez_compressed(target, images=images, labels=their_labels)
    console.print(f"{n} images of {images.shape[1]}x{images.shape[2]}: {target}")
