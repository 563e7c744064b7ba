"""`gswgan export`: a synthetic set in the form that others read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import console
from gswgan.errors import RunError


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or its release folder alone.")],
    out: Annotated[Path, typer.Argument(help="A new folder (PNG, a subfolder a class), or a .npz or .csv file.")],
    n: Annotated[int, typer.Option("--n", "-n", help="How many images.")] = 1000,
    labels: Annotated[str, typer.Option(help="uniform or released.")] = "uniform",
    seed: Annotated[int | None, typer.Option(help="Fixes the draw.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:  # fmt: skip
    """Write a synthetic set as a PNG folder, npz or CSV (label, then one column a pixel)."""
    import numpy as np
    from PIL import Image

    from gswgan.synthesizer import load

    if out.exists():
        raise RunError("out", str(out), "a path that does not exist yet", "Choose another one.")
    if out.suffix not in ("", ".npz", ".csv"):
        raise RunError("out", str(out), "a folder, a .npz or a .csv")
    model = load(run, device=device)
    images, their_labels = model.sample(n, labels, seed=seed)
    if out.suffix == ".npz":
        np.savez_compressed(out, images=images, labels=their_labels)
    elif out.suffix == ".csv":
        with out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", *(f"pixel{i}" for i in range(images[0].size if n else 0))])
            for label, image in zip(their_labels, images):
                writer.writerow([int(label), *image.reshape(-1).tolist()])
    else:
        names = [f"{label:02d}-{safe(name)}" for label, name in enumerate(model.plan.facts.class_names)]
        for label in np.unique(their_labels):
            (out / names[label]).mkdir(parents=True)
        for index, (label, image) in enumerate(zip(their_labels, images)):
            Image.fromarray(image).save(out / names[label] / f"{index:06d}.png")
    console.print(f"{n} images: {out}")


def safe(name: str) -> str:
    """A class name as part of a file name."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
