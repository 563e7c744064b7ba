"""`gswgan reference-classifier`: train a classifier on public data, to choose persons by (`--accuracy`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gswgan.cli.console import console
from gswgan.errors import DataError, RunError


def reference_classifier(
    data: Annotated[str, typer.Option(
        help="PUBLIC labelled data, of the shape and classes of the data to be protected; as for `gswgan train`.")],
    out: Annotated[Path, typer.Option(help="The file to make, for --reference-classifier.")],
    split: Annotated[str, typer.Option(help="The part to learn from: train or test.")] = "train",
    classes: Annotated[int | None, typer.Option(help="As for `gswgan train`.")] = None,
    image_size: Annotated[int | None, typer.Option(help="As for `gswgan train`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:  # fmt: skip
    """Train a classifier on public data: `gswgan reference-classifier --data mnist --split test --out public.st`.

    `gswgan train` and `gswgan federate` choose persons by it (`--accuracy 0.939..1 --reference-classifier public.st`),
    each by the person's own records. It must not be trained on the data to be protected: no epsilon covers such a
    classifier. A tenth of the data is held out, to state the accuracy to expect.
    """
    from gswgan.api import pick_device
    from gswgan.data import load_data
    from gswgan.evaluation.reference_classifier import train_reference_classifier

    if out.exists():
        raise RunError("out", str(out), "a file that does not exist yet", "Choose another --out.")
    public = load_data(data, split=split, classes=classes, image_size=image_size)
    labels = public.labels
    if labels is None or public.n < 20:
        raise DataError("data", data, "at least 20 labelled records to learn from", "Pass other public data.")
    order = np.random.default_rng(0).permutation(public.n)
    held_out, rows = order[: public.n // 10], order[public.n // 10 :]
    mine = dataclasses.replace(public, images=public.images[rows], labels=labels[rows], persons=None, person_ids=())
    columns = (TextColumn("step {task.completed:.0f}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        found = train_reference_classifier(
            mine, device=pick_device(device), progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    score = found.accuracy(public.images[held_out], labels[held_out])
    found.save(out)
    console.print(f"classifier: {out}, of {public.name} ({split}): {mine.n:,} records, {public.classes} classes")
    console.print(f"accuracy:  {score:.3f} on the {len(held_out):,} records that were held out")
