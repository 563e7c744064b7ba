"""What `gswgan train` does with its options: check them, plan, show or save the plan, run it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch

from gswgan.api.inputs import READING, open_source, source_of
from gswgan.api.training import (
    PlannedRun,
    check_fits,
    check_out,
    data_for,
    few_threads,
    needs_data,
    open_stopped,
    plan_training,
)
from gswgan.cli.console import console, print_json
from gswgan.cli.running import run_with_progress, show_private_score
from gswgan.cli.train_options import TrainOptions
from gswgan.critics.kernel.streaming import Workers
from gswgan.errors import PlanError, RunError, printable
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.run.estimate import estimate
from gswgan.run.folder import RunFolder, find_release
from gswgan.run.retrain import retrain


def start_training(options: TrainOptions) -> None:
    """Plan a run and run it, resume one, or train again on a release."""
    readers = check_workers(options.workers)
    _check_options(options)
    planning = options.dry_run or options.save_plan is not None  # a plan may be made for another machine
    if not planning and options.resume is None and (options.out is not None or options.source is None):
        check_out(options.out or Path("runs"), given=options.out is not None)
    elsewhere = planning and options.device.partition(":")[0] == "cuda"
    kind = options.device if elsewhere else pick_device(options.device).type
    if options.source is not None:
        run_with_progress(_retrain(options, options.source, kind), None, options.device, json=options.json)
        return
    source, folder = _source(options), None if options.resume is None else open_stopped(options.resume)
    if folder is not None and not needs_data(folder):
        run_with_progress(folder, None, options.device, json=options.json)
        return
    if folder is not None and options.data is None:
        source = folder.remembered_source()
    opened = open_source(source)
    if folder is not None:
        data = data_for(folder.plan(), opened)
        check_fits(folder.plan(), data)
    else:
        planned = plan_training(
            opened, _asked(options, kind), saved=options.plan_file, name=options.name, budget=options.budget,
            allow_large_delta=options.allow_large_delta, force_spend=options.force_spend or planning,
            public=options.public,
        )  # fmt: skip
        _show(options, planned)
        if planning:
            return
        name = planned.plan.preset if planned.plan.method == "gswgan" else planned.plan.method
        root = options.out or _free(Path("runs") / f"{_local_name(source['spec'])}-{name}")
        folder, data = planned.create(root), planned.data
    run_with_progress(folder, data, options.device, readers, source, json=options.json)
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
        "--public-features": options.public_features,
        "--steps": None if again else options.steps, "--seed": None if again else options.seed,
    }  # fmt: skip
    if continued:
        fixed |= {"--budget": options.budget, "--dry-run": options.dry_run or None, "--save-plan": options.save_plan}
        fixed |= {"--public": options.public}
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


def _source(options: TrainOptions) -> dict[str, Any]:
    """Where the data is read from, and how."""
    reading = {name: getattr(options, name) for name in READING}
    return source_of("digits" if options.data is None else options.data, labels=options.labels, **reading)


def _asked(options: TrainOptions, device: str) -> dict[str, Any]:
    """What the planner is asked for."""
    return {
        "method": options.method or "gswgan", "preset": options.preset, "epsilon": options.epsilon,
        "delta": options.delta, "critics": options.critics, "steps": options.steps, "seed": options.seed or 0,
        "device": device, "insecure_reproducible": options.insecure_reproducible,
        "neighbours": options.neighbours or "replace-one", "public_features": options.public_features or "",
    }  # fmt: skip


def _show(options: TrainOptions, planned: PlannedRun) -> None:
    """Warn about a new plan, and print or save it as asked for."""
    for warning in planned.warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    if options.save_plan is not None:
        planned.save(options.save_plan)
        console.print(f"plan saved: {options.save_plan}")
    timed = None
    if options.dry_run:
        console.print(str(planned))
        timed = _show_time(options, planned.plan)
    elif planned.room is not None:
        console.print(f"budget:    {planned.room}")
    if options.json and (options.dry_run or options.save_plan is not None):
        print_json({"plan": planned.plan.to_json(), "warnings": list(planned.warnings), "seconds": timed})


def _show_time(options: TrainOptions, plan: Plan) -> float | None:
    """Say how long the run would take on this machine; returns the seconds, where they can be told without data."""
    if options.device.startswith("cuda") and not torch.cuda.is_available():  # planned for another machine
        return None
    device = pick_device(options.device)
    with few_threads(plan.facts.image_size, device):
        found = estimate(plan, device)
    none = "no estimate for this plan: its steps need data, or an encoder is first. A run shows the time that is left"
    console.print(f"time:      {found or none}")
    return None if found is None else found.seconds


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
