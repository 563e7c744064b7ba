"""A training run on the console: the plan, a bar while it lasts, and what it leaves."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from gswgan.cli.console import console, print_json
from gswgan.cli.progress import Move, progress_bar

if TYPE_CHECKING:
    from gswgan.critics.kernel.streaming import Workers
    from gswgan.data import ImageData, ImageStream
    from gswgan.plan.plan import Plan
    from gswgan.run.folder import RunFolder


def progress_of(plan: Plan) -> AbstractContextManager[Move]:
    """The bar of a run, with what is spent so far; the guarantee that this counts towards is printed before."""
    from gswgan.api.progress import spent

    return progress_bar(plan.training.steps, spent=partial(spent, plan))


def run_with_progress(
    folder: RunFolder,
    images: ImageData | ImageStream | None,
    device: str,
    workers: Workers = 1,
    where: dict[str, Any] | None = None,
    *,
    json: bool = False,
) -> None:
    """Run the folder's plan to its end: the plan, a bar with the epsilon spent so far, and what was made."""
    from gswgan.api.plan_text import describe
    from gswgan.api.progress import Watch
    from gswgan.api.training import run_folder
    from gswgan.plan.settings import pick_device
    from gswgan.report.explain import outcome

    plan, place = folder.plan(), pick_device(device)
    console.print(describe(plan))
    console.print(f"run folder: {folder.root}")

    ranks = None
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started this process, and others
        from gswgan.cli.ranks import ranks_of

        ranks = ranks_of(plan, where)
    with progress_of(plan) as move:
        watch = Watch(step=move, reading=partial(move, what="record"), note=console.print)
        ended = run_folder(folder, images, device=place, watch=watch, workers=workers, ranks=ranks)
    if not ended:
        console.print(f"stopped; continue with: gswgan train --resume {folder.root}")
        raise typer.Exit(130)
    console.print(outcome(folder))
    if json:
        print_json(run_content(folder))


def run_content(folder: RunFolder) -> dict[str, Any]:
    """What a finished run has written, and its guarantee, as plain data."""
    from gswgan.run.folder import read_json

    kept = read_json(folder.model, "model.json")["labels"]
    names = enumerate(folder.plan().facts.class_names)
    return {
        "run": str(folder.root), "release": str(folder.release), "samples": str(folder.samples),
        "left_out": [name for label, name in names if label not in kept],
        "privacy": read_json(folder.privacy, "privacy.json"),
    }  # fmt: skip


def show_private_score(folder: RunFolder) -> None:
    """What real held-out data says of the generator: not for release."""
    from gswgan.errors import DataError
    from gswgan.evaluation.classifiers import logistic_accuracy
    from gswgan.evaluation.real_data import NO_CHOICE_OF_PERSONS, load_data
    from gswgan.run.folder import read_json
    from gswgan.run.released import load

    if folder.left_out.exists():
        told = read_json(folder.left_out, "left_out.json")
        console.print(f"PRIVATE: {told['left_out']} of {told['records']} records are no image of a known class.")
    try:
        test = load_data(**folder.remembered_source() | NO_CHOICE_OF_PERSONS, split="test")
    except DataError:
        console.print("PRIVATE: this data has no held-out part to test on.")
        return
    images, labels = load(folder.root, device="cpu").sample(5000, seed=0)
    if test.labels is None or len(set(labels.tolist())) < 2:
        console.print("PRIVATE: nothing to score without labels.")
        return
    score = logistic_accuracy(images, labels, test.images, test.labels)
    console.print(f"PRIVATE, not for release: logistic regression trained on synthetic, tested on real: {score:.3f}")
