"""`gswgan sample` and `gswgan export`: synthetic images from a release, in a file or a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import Json, console, errors, print_json
from gswgan.cli.progress import progress_bar

_Run = Annotated[Path, typer.Argument(help="A run folder, or its release folder alone.")]
_Count = Annotated[int, typer.Option("--n", "-n", help="How many images.")]
_Labels = Annotated[str, typer.Option(
    help="uniform over the classes, or released: in proportion to the noisy counts, already paid.")]  # fmt: skip
_Classes = Annotated[list[str] | None, typer.Option("--class", metavar="NAME",
    help="Only this class, by its name; several times for several classes, in equal parts.")]  # fmt: skip
_Seed = Annotated[int | None, typer.Option(help="Fixes the draw.")]
_Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


def sample(
    run: _Run,
    n: _Count = 1000,
    out: Annotated[Path, typer.Option(help="The .npz to write.")] = Path("synthetic.npz"),
    labels: _Labels = "uniform",
    classes: _Classes = None,
    seed: _Seed = None,
    device: _Device = "auto",
    json: Json = False,
) -> None:
    """Draw images into an .npz with `images` (uint8), `labels` and `class_names`. Costs no privacy, however many."""
    _write(run, out, (".npz",), n, classes or labels, seed, device, json)


def export(
    run: _Run,
    out: Annotated[Path, typer.Argument(
        help="A new folder (PNG, a subfolder per class), or a .npz, .csv or .parquet file.")],
    n: _Count = 1000,
    labels: _Labels = "uniform",
    classes: _Classes = None,
    seed: _Seed = None,
    device: _Device = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """Write a synthetic set: PNG folder, npz, CSV (label, class name, pixels) or Parquet as on Hugging Face."""
    from gswgan.run.exports import KINDS

    _write(run, out, KINDS, n, classes or labels, seed, device, json)


def _write(
    run: Path,
    out: Path,
    kinds: tuple[str, ...],
    n: int,
    labels: str | list[str],
    seed: int | None,
    device: str,
    json: bool,
) -> None:
    from gswgan.errors import PlanError
    from gswgan.run.exports import check_new_path, export_warnings, write_images
    from gswgan.run.released import load

    check_new_path(out, *kinds)
    if isinstance(labels, str) and labels not in ("uniform", "released"):
        raise PlanError("labels", labels, "uniform or released", f"For one class: --class {labels}.")
    model = load(run, device=device)
    names = model.plan.facts.class_names
    with progress_bar(n, "image") as move:
        images, their_labels = model.sample(n, labels, seed=seed, progress=move)
        write_images(out, images, their_labels, names, progress=partial(move, what="written image"))
    for warning in export_warnings(out, names):
        errors.print(f"warning: {warning}")
    console.print(f"{n} images of {images.shape[1]}x{images.shape[2]}: {out}")
    if json:
        counts = {name: int((their_labels == label).sum()) for label, name in enumerate(names)}
        print_json({"out": str(out), "images": n, "shape": list(images.shape[1:]), "class_counts": counts})
