"""`gswgan train`: from data to a run folder with a generator and its guarantee."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gswgan.cli.console import console
from gswgan.cli.running import run_with_progress, show_private_score
from gswgan.errors import PlanError, RunError, printable
from gswgan.methods import read_plan

if TYPE_CHECKING:
    from gswgan.data import ImageData, ImageStream
    from gswgan.plan.plan import Plan
    from gswgan.run.folder import RunFolder

_DATA, _GUARANTEE, _RUN = "Data", "Guarantee", "Run"


def train(
    data: Annotated[str | None, typer.Option(
        help="digits (the default), mnist, fashion-mnist, an idx folder, an .npz with `images` (and `labels`), a "
        "folder of .parquet or .npz files of any size, or a folder with a subfolder of images for each class. By "
        "person: mnist-writers, femnist-writers, a LEAF folder, a TFF .h5, or a folder with a folder of classes for "
        "each client.", rich_help_panel=_DATA)] = None,
    classes: Annotated[int | None, typer.Option(
        help="Number of classes where the data has labels but no class names. Public: never counted from the data. "
        "FEMNIST: 62, or the paper's 36 (case merged).",
        rich_help_panel=_DATA)] = None,
    image_size: Annotated[int | None, typer.Option(
        help="Scale and pad to squares of this side (8 to 64).", rich_help_panel=_DATA)] = None,
    channels: Annotated[int | None, typer.Option(
        help="1 (grey) or 3 (colour), for a folder that has both kinds of images.", rich_help_panel=_DATA)] = None,
    labels: Annotated[bool, typer.Option(help="Use the labels, or learn one class.", rich_help_panel=_DATA)] = True,
    name: Annotated[str | None, typer.Option(
        help="Public name of the data, for card and report. Default: that of a known data set, or the kind of source; "
        "files and folders are not named.", rich_help_panel=_DATA)] = None,
    group_by: Annotated[Path | None, typer.Option(
        help="A file with one person id a record: protects whole persons instead of records.",
        rich_help_panel=_DATA)] = None,
    min_records: Annotated[int | None, typer.Option(
        help="Leave out persons with fewer records.", rich_help_panel=_DATA)] = None,
    accuracy: Annotated[str | None, typer.Option(metavar="FROM..TO",
        help="Leave out persons at whose records --reference-classifier is outside (the paper: 0.939..1, or 0..0.882).",
        rich_help_panel=_DATA)] = None,
    reference_classifier: Annotated[Path | None, typer.Option(
        help="The file of a classifier trained on public data (`gswgan reference-classifier`).",
        rich_help_panel=_DATA)] = None,
    epsilon: Annotated[float | None, typer.Option(
        help="Target epsilon; the noise is calibrated to it. Default: the preset's, 10.",
        rich_help_panel=_GUARANTEE)] = None,
    delta: Annotated[float | None, typer.Option(
        help="Target delta, well below 1 / records. Default: 1e-5, and 0.1 / records from 100,000 on.",
        rich_help_panel=_GUARANTEE)] = None,
    neighbours: Annotated[str | None, typer.Option(
        help="replace-one (the default: one record is exchanged) or zeroed (one record's contribution is removed; "
        "weaker, for comparison with epsilons of one record added or removed; presets kernel and refined).",
        rich_help_panel=_GUARANTEE)] = None,
    allow_large_delta: Annotated[bool, typer.Option("--allow-large-delta",
        help="Take a delta of 1 / records (or 1 / persons) or more, which is refused otherwise: it allows one of them "
        "to be published in the clear.", rich_help_panel=_GUARANTEE)] = False,
    budget: Annotated[Path | None, typer.Option(
        help="Enter the run into this budget file before it releases anything; refused if all runs in it together "
        "would go beyond its budget. Make one: gswgan budget FILE --epsilon 10 --delta 1e-5.",
        rich_help_panel=_GUARANTEE)] = None,
    method: Annotated[str | None, typer.Option(
        help="gswgan (the default), or a baseline: dp-merf, dp-merf-ae, dp-sgd-gan, g-pate, pate-gan, "
        "gan (NOT private), or by person fed-avg-gan.",
        rich_help_panel=_RUN)] = None,
    preset: Annotated[str | None, typer.Option(
        help="gswgan: default (kernel critic), refined (a denoiser goes on from there), ensemble (GS-WGAN made true), "
        "ensemble-alone (never led by the kernel critic) or paper (as published, for comparison); dp-merf, dp-merf-ae: "
        "default or paper (as published); "
        "dp-sgd-gan: revisited or dp-cgan (as published).",
        rich_help_panel=_RUN)] = None,
    shards: Annotated[int | None, typer.Option(
        help="Number of critics or teachers, each with its own part of the data (ensemble, paper, g-pate, pate-gan).",
        rich_help_panel=_RUN)] = None,
    steps: Annotated[int | None, typer.Option(
        help="Training steps. Each one releases with an ensemble and most baselines, none with the kernel critic.",
        rich_help_panel=_RUN)] = None,
    out: Annotated[Path | None, typer.Option(
        help="The run folder to make. Default: runs/DATA-PRESET, runs/DATA-METHOD.", rich_help_panel=_RUN)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=_RUN)] = "auto",
    workers: Annotated[str | None, typer.Option(metavar="N|ray",
        help="Processes that read a folder of shards, or ray: the Ray cluster at $RAY_ADDRESS. Default: one per core.",
        rich_help_panel=_RUN)] = None,
    seed: Annotated[int | None, typer.Option(
        help="Fixes partition, initial weights and latent codes; never the noise. Default: 0.",
        rich_help_panel=_RUN)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run",
        help="Print the plan, what more or less data would buy, and which critic to use. Nothing is released.",
        rich_help_panel=_RUN)] = False,
    save_plan: Annotated[Path | None, typer.Option(
        help="Save the plan to this file, then stop.", rich_help_panel=_RUN)] = None,
    plan_file: Annotated[Path | None, typer.Option("--plan",
        help="Run a saved plan (needs no dp-accounting).", rich_help_panel=_RUN)] = None,
    resume: Annotated[Path | None, typer.Option(
        help="Continue this run where it stopped.", rich_help_panel=_RUN)] = None,
    source: Annotated[Path | None, typer.Option("--from",
        help="Train a new generator on the embedding that this run released: no data, no further cost.",
        rich_help_panel=_RUN)] = None,
    insecure_reproducible: Annotated[bool, typer.Option("--insecure-reproducible",
        help="Take the noise from the seed. For tests: the release then has NO guarantee.",
        rich_help_panel=_RUN)] = False,
    show_private: Annotated[bool, typer.Option("--show-private",
        help="Also show figures computed on real held-out data, marked PRIVATE: not for release.",
        rich_help_panel=_RUN)] = False,
) -> None:  # fmt: skip
    """Train a private generator: `gswgan train --data digits --epsilon 10`.

    Makes a run folder with release/ (what may be published: generator, guarantee, ledger, card, samples) and
    private/ (what may not). Ctrl-C leaves a run that `--resume` continues.
    """
    from gswgan.critics.kernel.streaming import check_workers
    from gswgan.methods import make_plan
    from gswgan.plan.facts import Facts
    from gswgan.plan.make import check_large_delta, plan_warnings
    from gswgan.run.folder import RunFolder
    from gswgan.run.publish import check_stated
    from gswgan.run.released import pick_device

    if sum(option is not None for option in (resume, source, plan_file)) > 1:
        raise PlanError("options", "--resume, --from, --plan", "at most one of them", "Leave the others out.")
    readers = check_workers(workers)
    continued = resume is not None or source is not None
    fixed: dict[str, object] = {"--epsilon": epsilon, "--delta": delta, "--shards": shards, "--preset": preset}
    fixed |= {
        "--insecure-reproducible": insecure_reproducible or None,
        "--method": method,
        "--name": name,
        "--neighbours": neighbours,
    }
    fixed |= {"--steps": None if source else steps, "--seed": None if source else seed}
    if continued:
        fixed |= {
            "--budget": budget,
            "--dry-run": dry_run or None,
            "--save-plan": save_plan,
            "--out": out if resume else None,
        }
    given = [name for name, value in fixed.items() if value is not None]
    if given and (continued or plan_file is not None):
        raise PlanError(
            "options",
            given[0],
            "nothing of the kind with --resume, --from or --plan",
            "The plan is fixed: leave it out.",
        )
    if name is not None and not name.strip():
        raise PlanError("name", name, "a public name of the data", "Leave --name out for the kind of source.")
    if save_plan is not None and os.path.lexists(save_plan):
        raise RunError("plan", str(save_plan), "a file that does not exist yet", "Choose another --save-plan.")
    planning = dry_run or save_plan is not None  # a plan may be made for another machine
    if not planning and resume is None and (out is not None or source is None):
        _check_out(out or Path("runs"), given=out is not None)
    kind = device if planning and device.partition(":")[0] == "cuda" else pick_device(device).type
    if source is not None:
        folder = _retrain(source, out, steps, kind, seed or 0)
        run_with_progress(folder, None, device)
        return

    from gswgan.data import ImageData
    from gswgan.data.sources import NAMES
    from gswgan.evaluation.real_data import load_data, open_data

    spec = "digits" if data is None else data if data in ("", *NAMES) else str(Path(data).absolute())
    where: dict[str, Any] = {"spec": spec, "classes": classes, "image_size": image_size, "labels": labels}
    where["channels"] = channels
    where["group_by"] = None if group_by is None else str(group_by.absolute())
    where |= {"min_records": min_records, "accuracy": accuracy}
    where["reference_classifier"] = None if reference_classifier is None else str(reference_classifier.absolute())
    if resume is not None:
        folder = RunFolder(resume)
        if not folder.model.is_file():
            raise RunError("resume", str(resume), "the folder of a run that was stopped", "Check the path (--resume).")
        if folder.plan().source is not None or folder.is_finished:  # no data is needed, or nothing is left to do
            run_with_progress(folder, None, device)
            return
        where = folder.remembered_source() if data is None else where
    images = open_data(**where)
    if resume is not None:
        plan = folder.plan()
    else:
        facts = Facts.of(images) if name is None else dataclasses.replace(Facts.of(images), data=name)
        plan = read_plan(plan_file) if plan_file is not None else make_plan(
            facts, method=method or "gswgan", preset=preset, epsilon=epsilon, delta=delta, shards=shards,
            steps=steps, seed=0 if seed is None else seed, device=kind, insecure_reproducible=insecure_reproducible,
            neighbours=neighbours or "replace-one",
        )  # fmt: skip
    if not isinstance(images, ImageData) and not plan.critic.can_stream:
        images = load_data(**where)  # other critics go through their data more than once
    _check_fits(plan, images)
    if resume is None:
        check_large_delta(plan, allowed=allow_large_delta)
        check_stated(plan)
        for doubt in plan_warnings(plan, images):
            print(f"warning: {printable(doubt)}", file=sys.stderr)
        if budget is not None:
            from gswgan.run.budget import Budget

            console.print(f"budget:      {Budget(budget).check(plan)}")
        if save_plan is not None:
            plan.save(save_plan)
            console.print(f"plan saved: {save_plan}")
        if dry_run:
            from gswgan.cli.plan_text import advice, describe, outlook

            console.print(describe(plan))
            if plan.method == "gswgan":
                console.print(outlook(plan))
                console.print(advice(plan))
        if planning:
            return
        kind = plan.preset if plan.method == "gswgan" else plan.method
        folder = _create(out or _free(Path("runs") / f"{_local_name(where['spec'])}-{kind}"), plan, where, budget)
    run_with_progress(folder, images, device, readers, where)
    if show_private:
        show_private_score(folder)


def _check_out(out: Path, *, given: bool) -> None:
    """Refuse what cannot be written, or must not be written over, before any work is done."""
    from gswgan.run.folder import RunFolder

    if given and not RunFolder(out).is_vacant():
        raise RunError("out", str(out), "a folder that does not exist yet", "Choose another --out, or --resume it.")
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError("out", str(out), f"a folder that can be made inside {nearest}", "Choose another --out.")


def _create(root: Path, plan: Plan, where: dict[str, Any], budget: Path | None) -> RunFolder:
    """The run folder; where it cannot be made, the folders above it that were new go again as well."""
    from gswgan.run.folder import RunFolder

    new = [path for path in root.absolute().parents if not path.exists()]
    try:
        return RunFolder.create(root, plan, source=where, budget=budget)
    except RunError:
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _check_fits(plan: Plan, images: ImageData | ImageStream) -> None:
    from gswgan.data import ImageData
    from gswgan.data.partition import check_everybody, check_own_names
    from gswgan.methods import find_method
    from gswgan.plan.facts import Facts

    facts = Facts.of(images)
    for name in ("records", "persons", "classes", "labelled", "image_size", "channels"):
        found, planned = getattr(facts, name), getattr(plan.facts, name)
        if found != planned:
            raise PlanError(f"data: {name}", found, f"{planned}, as planned", "Pass the data that the plan is for.")
    if images.persons is not None and find_method(plan.method).takes_shards and not plan.critic.can_stream:
        check_everybody(images.persons, images.number_of_persons)  # before anything is written
    if isinstance(images, ImageData) and not plan.critic.can_stream:
        check_own_names(images.repeated_names)


def _retrain(source: Path, out: Path | None, steps: int | None, device: str, seed: int) -> RunFolder:
    from gswgan.run.folder import find_release
    from gswgan.run.retrain import retrain

    root = find_release(source.resolve()).release.parent
    return retrain(source, out or _free(root.with_name(root.name + "-again")), steps=steps, device=device, seed=seed)


def _local_name(spec: str) -> str:
    """What the data is called on this machine, for the name of the run folder: that is not published."""
    path = Path(spec).resolve()
    return path.name if path.is_dir() else path.stem


def _free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is not taken."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
