"""`gswgan export`: a synthetic set in the form that others read."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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

    from gswgan.api import load

    if out.suffix not in ("", ".npz", ".csv"):
        raise RunError("out", str(out), "a folder, a .npz or a .csv", "Choose another name.")
    check_free(out)
    model = load(run, device=device)
    images, their_labels = model.sample(n, labels, seed=seed)
    with writing(out) as aside:
        if out.suffix == ".npz":
            np.savez_compressed(aside, images=images, labels=their_labels)
        elif out.suffix == ".csv":
            with aside.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["label", *(f"pixel{i}" for i in range(images[0].size))])
                for label, image in zip(their_labels, images):
                    writer.writerow([int(label), *image.reshape(-1).tolist()])
        else:
            names = [f"{label:02d}-{safe(name)}" for label, name in enumerate(model.plan.facts.class_names)]
            for label in np.unique(their_labels):
                (aside / names[label]).mkdir(parents=True)
            for index, (label, image) in enumerate(zip(their_labels, images)):
                Image.fromarray(image).save(aside / names[label] / f"{index:06d}.png")
    console.print(f"{n} images: {out}")


def check_free(out: Path) -> None:
    """Refuse to write over anything, and what has no folder to be in, before any work is done."""
    if os.path.lexists(out):
        raise RunError("out", str(out), "a path that does not exist yet", "Choose another one.")
    if not out.absolute().parent.is_dir():
        raise RunError("out", str(out), "a path in a folder that exists", "Make the folder first.")


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A path in a new folder beside `out`, which becomes `out` when it is whole; a failure leaves nothing behind."""
    fresh: Path | None = None
    try:
        fresh = Path(tempfile.mkdtemp(prefix=".gswgan-", dir=out.absolute().parent))  # ours alone (0700), never a link
        yield fresh / out.name
        os.rename(fresh / out.name, out)
    except OSError as wrong:
        expected = f"a place that can be written ({wrong.strerror or wrong})"
        raise RunError("out", str(out), expected, "Make room, or choose another one.") from wrong
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def safe(name: str) -> str:
    """A class name as part of a file name."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
