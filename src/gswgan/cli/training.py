"""What `gswgan train` does with its options: check them, plan, show or save the plan, run it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from gswgan.cli.console import console, print_json
from gswgan.cli.plan_text import advice, describe, outlook
from gswgan.cli.reading_options import reading_of
from gswgan.cli.running import run_with_progress, show_private_score
from gswgan.cli.train_options import TrainOptions
from gswgan.critics.kernel.streaming import Workers
from gswgan.data import ImageData, ImageStream
from gswgan.data.partition import check_everybody, check_own_names
from gswgan.data.sources import NAMES
from gswgan.errors import PlanError, RunError, printable
from gswgan.evaluation import real_data
from gswgan.methods import find_method, make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.make import check_large_delta, plan_warnings
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder, find_release
from gswgan.run.publish import check_stated
from gswgan.run.retrain import retrain


def start_training(options: TrainOptions) -> None:
    """Plan a run and run it, resume one, or train again on a release."""
    readers = check_workers(options.workers)
    _check_options(options)
    planning = options.dry_run or options.save_plan is not None  # a plan may be made for another machine
    if not planning and options.resume is None and (options.out is not None or options.source is None):
        _check_out(options.out or Path("runs"), given=options.out is not None)
    elsewhere = planning and options.device.partition(":")[0] == "cuda"
    kind = options.device if elsewhere else pick_device(options.device).type
    if options.source is not None:
        run_with_progress(_retrain(options, options.source, kind), None, options.device, json=options.json)
        return
    where, folder = _where(options), None
    if options.resume is not None:
        folder = RunFolder(options.resume)
        if not folder.model.is_file():
            expected = "the folder of a run that was stopped"
            raise RunError("resume", str(options.resume), expected, "Check the path (--resume).")
        if folder.plan().source is not None or folder.is_finished:  # no data is needed, or nothing is left to do
            run_with_progress(folder, None, options.device, json=options.json)
            return
        where = folder.remembered_source() if options.data is None else where
    images = real_data.open_data(**where)
    plan = folder.plan() if folder is not None else _plan(options, images, kind)
    if not isinstance(images, ImageData) and not plan.critic.can_stream:
        images = real_data.load_data(**where)  # other critics go through their data more than once
    _check_fits(plan, images)
    if folder is None:
        _show(options, plan, images)
        if planning:
            return
        name = plan.preset if plan.method == "gswgan" else plan.method
        root = options.out or _free(Path("runs") / f"{_local_name(where['spec'])}-{name}")
        folder = _create(root, plan, where, options.budget)
    run_with_progress(folder, images, options.device, readers, where, json=options.json)
    if options.show_private:
        show_private_score(folder)


def check_workers(given: str | None) -> Workers:
    """Return the workers that were asked for; without a request, one process per core."""
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if given == "ray":
        if importlib.util.find_spec("ray") is None:
            raise PlanError("workers", given, "Ray, which is not installed", "pip install 'gswgan[federated]'")
        return given
    if given.isascii() and given.isdigit() and 1 <= int(given) <= 1024:
        return int(given)
    raise PlanError("workers", given, "a number from 1 to 1024, or ray", "Leave --workers out for one per core.")


def _check_options(options: TrainOptions) -> None:
    """Which options may stand together."""
    if sum(option is not None for option in (options.resume, options.source, options.plan_file)) > 1:
        raise PlanError("options", "--resume, --from, --plan", "at most one of them", "Leave the others out.")
    continued, again = options.resume is not None or options.source is not None, options.source is not None
    fixed: dict[str, object] = {
        "--epsilon": options.epsilon, "--delta": options.delta, "--critics": options.critics,
        "--preset": options.preset, "--insecure-reproducible": options.insecure_reproducible or None,
        "--method": options.method, "--name": options.name, "--neighbours": options.neighbours,
        "--steps": None if again else options.steps, "--seed": None if again else options.seed,
    }  # fmt: skip
    if continued:
        fixed |= {"--budget": options.budget, "--dry-run": options.dry_run or None, "--save-plan": options.save_plan}
        fixed |= {"--out": None if again else options.out}
    given = [name for name, value in fixed.items() if value is not None]
    if given and (continued or options.plan_file is not None):
        expected = "nothing of the kind with --resume, --from or --plan"
        raise PlanError("options", given[0], expected, "The plan is fixed: leave it out.")
    if options.name is not None and not options.name.strip():
        raise PlanError("name", options.name, "a public name of the data", "Leave --name out for the kind of source.")
    if options.save_plan is not None and os.path.lexists(options.save_plan):
        expected = "a file that does not exist yet"
        raise RunError("plan", str(options.save_plan), expected, "Choose another --save-plan.")


def _where(options: TrainOptions) -> dict[str, Any]:
    """Where the data is read from, and how."""
    data, classifier = options.data, options.reference_classifier
    return {
        "spec": "digits" if data is None else data if data in ("", *NAMES) else str(Path(data).absolute()),
        "classes": options.classes,
        "image_size": options.image_size,
        "labels": options.labels,
        "channels": options.channels,
        **reading_of(vars(options)),
        "min_records": options.min_records,
        "accuracy": options.accuracy,
        "reference_classifier": None if classifier is None else str(classifier.absolute()),
    }


def _plan(options: TrainOptions, images: ImageData | ImageStream, device: str) -> Plan:
    if options.plan_file is not None:
        return read_plan(options.plan_file)
    facts = Facts.of(images) if options.name is None else dataclasses.replace(Facts.of(images), data=options.name)
    return make_plan(
        facts, method=options.method or "gswgan", preset=options.preset, epsilon=options.epsilon, delta=options.delta,
        critics=options.critics, steps=options.steps, seed=options.seed or 0, device=device,
        insecure_reproducible=options.insecure_reproducible, neighbours=options.neighbours or "replace-one",
    )  # fmt: skip


def _show(options: TrainOptions, plan: Plan, images: ImageData | ImageStream) -> None:
    """Check a new plan, warn, and print or save it as asked for."""
    check_large_delta(plan, allowed=options.allow_large_delta)
    check_stated(plan)
    warnings = plan_warnings(plan, images)
    for warning in warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    if options.budget is not None:
        console.print(f"budget:      {Budget(options.budget).check(plan)}")
    if options.save_plan is not None:
        plan.save(options.save_plan)
        console.print(f"plan saved: {options.save_plan}")
    if options.dry_run:
        console.print(describe(plan))
        if plan.method == "gswgan":
            console.print(outlook(plan))
            console.print(advice(plan))
    if options.json and (options.dry_run or options.save_plan is not None):
        print_json({"plan": plan.to_json(), "warnings": list(warnings)})


def _check_out(out: Path, *, given: bool) -> None:
    """Refuse what cannot be written, or must not be written over, before any work is done."""
    if given and not RunFolder(out).is_vacant():
        raise RunError("out", str(out), "a folder that does not exist yet", "Choose another --out, or --resume it.")
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError("out", str(out), f"a folder that can be made inside {nearest}", "Choose another --out.")


def _create(root: Path, plan: Plan, where: dict[str, Any], budget: Path | None) -> RunFolder:
    """The run folder; where it cannot be made, the folders above it that were new go again as well."""
    new = [path for path in root.absolute().parents if not path.exists()]
    try:
        return RunFolder.create(root, plan, source=where, budget=budget)
    except RunError:
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _check_fits(plan: Plan, images: ImageData | ImageStream) -> None:

    facts = Facts.of(images)
    for name in ("records", "persons", "classes", "labelled", "image_size", "channels", "reading"):
        found, planned = getattr(facts, name), getattr(plan.facts, name)
        if found != planned:
            if name == "reading":
                found, planned = found.text or "nothing stated", planned.text or "nothing stated"
            raise PlanError(f"data: {name}", found, f"{planned}, as planned", "Pass the data that the plan is for.")
    if images.persons is not None and find_method(plan.method).takes_critics and not plan.critic.can_stream:
        check_everybody(images.persons, images.number_of_persons)  # before anything is written
    if isinstance(images, ImageData) and not plan.critic.can_stream:
        check_own_names(images.repeated_names)


def _retrain(options: TrainOptions, source: Path, device: str) -> RunFolder:
    root = find_release(source.resolve()).release.parent
    out = options.out or _free(root.with_name(root.name + "-again"))
    return retrain(source, out, steps=options.steps, device=device, seed=options.seed or 0)


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
