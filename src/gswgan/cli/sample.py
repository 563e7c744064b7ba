"""`gswgan sample` and `gswgan export`: synthetic images from a release, in a file or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console

_Run = Annotated[Path, typer.Argument(help="A run folder, or its release folder alone.")]
_Count = Annotated[int, typer.Option("--n", "-n", help="How many images.")]
_Labels = Annotated[str, typer.Option(
    help="uniform over the classes, or released: in proportion to the noisy counts, already paid.")]  # fmt: skip
_Seed = Annotated[int | None, typer.Option(help="Fixes the draw.")]
_Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


def sample(
    run: _Run,
    n: _Count = 1000,
    out: Annotated[Path, typer.Option(help="The .npz to write.")] = Path("synthetic.npz"),
    labels: _Labels = "uniform",
    seed: _Seed = None,
    device: _Device = "auto",
) -> None:
    """Draw images into an .npz with `images` (uint8) and `labels`. Costs no privacy, however many."""
    _write(run, out, (".npz",), n, labels, seed, device)


def export(
    run: _Run,
    out: Annotated[Path, typer.Argument(help="A new folder (PNG, a subfolder per class), or a .npz or .csv file.")],
    n: _Count = 1000,
    labels: _Labels = "uniform",
    seed: _Seed = None,
    device: _Device = "auto",
) -> None:
    """Write a synthetic set as a PNG folder, npz or CSV (label, then one column per pixel)."""
    _write(run, out, ("", ".npz", ".csv"), n, labels, seed, device)


def _write(run: Path, out: Path, kinds: tuple[str, ...], n: int, labels: str, seed: int | None, device: str) -> None:
    from gswgan.run.released import check_new_path, load, write_samples

    check_new_path(out, *kinds)
    model = load(run, device=device)
    images, their_labels = model.sample(n, labels, seed=seed)
    write_samples(model, out, images, their_labels)
    console.print(f"{n} images of {images.shape[1]}x{images.shape[2]}: {out}")
