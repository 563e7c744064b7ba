"""`gswgan reference-classifier`: train a classifier on public data, to choose persons by (`--accuracy`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import Json, console, print_json
from gswgan.cli.progress import work_bar
from gswgan.cli.reading_options import Background, Layout, PixelRange
from gswgan.errors import RunError


def reference_classifier(
    data: Annotated[str, typer.Option(
        help="PUBLIC labelled data, of the shape and classes of the data to be protected; as for `gswgan train`.")],
    out: Annotated[Path, typer.Option(help="The file to make, for --reference-classifier.")],
    split: Annotated[str, typer.Option(help="The part to learn from: train or test.")] = "train",
    classes: Annotated[int | None, typer.Option(help="As for `gswgan train`.")] = None,
    image_size: Annotated[int | None, typer.Option(help="As for `gswgan train`.")] = None,
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """Train a classifier on public data: `gswgan reference-classifier --data mnist --split test --out public.st`.

    `gswgan train` and `gswgan federate` choose persons by it (`--accuracy 0.939..1 --reference-classifier public.st`),
    each by the person's own records. It must not be trained on the data to be protected: no epsilon covers such a
    classifier. A tenth of the data is held out, to state the accuracy to expect.
    """
    from gswgan.data import load_data
    from gswgan.evaluation.reference_classifier import train_on_public
    from gswgan.plan.settings import pick_device

    if out.exists():
        raise RunError("out", str(out), "a file that does not exist yet", "Choose another --out.")
    public = load_data(
        data, split=split, classes=classes, image_size=image_size, pixel_range=pixel_range, background=background,
        layout=layout,
    )  # fmt: skip
    with work_bar() as (_, progress):
        found, held_out, score = train_on_public(
            public, device=pick_device(device), progress=lambda done, total: progress("step", done, total)
        )
    found.save(out)
    learned = public.n - held_out
    console.print(f"classifier: {out}, of {public.name} ({split}): {learned:,} records, {public.classes} classes")
    console.print(f"accuracy:   {score:.3f} on the {held_out:,} records that were held out")
    if json:
        print_json({
            "out": str(out), "data": public.name, "split": split, "records": learned, "classes": public.classes,
            "held_out": held_out, "accuracy": score,
        })  # fmt: skip
