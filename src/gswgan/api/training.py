"""Training from data to a release: plan, make the run folder, run, resume. The command line and `GSWGAN` use it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gswgan.api.inputs import Opened
from gswgan.api.plan_text import advice, describe, outlook
from gswgan.api.progress import Watch
from gswgan.api.wording import python_words
from gswgan.critics.ensemble.distributed import Ranks
from gswgan.critics.kernel.streaming import Workers
from gswgan.critics.kernel.vgg import read_vgg
from gswgan.data import ImageData, ImageStream
from gswgan.data.partition import check_everybody, check_own_names
from gswgan.data.public import PublicImages, read_public, refuse_same_images, refuse_same_source
from gswgan.errors import PlanError, RunError, path_problem
from gswgan.evaluation import real_data
from gswgan.methods import find_method, make_plan, read_plan
from gswgan.methods.choice import usual_preset
from gswgan.plan.defaults import TINY
from gswgan.plan.enough import check_enough, check_visible
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.make import check_large_delta, plan_warnings
from gswgan.plan.plan import Plan
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder
from gswgan.run.loop import Answerer, run
from gswgan.run.over import check_not_over
from gswgan.run.public_images import check_public
from gswgan.run.publish import check_stated


class Interrupted(KeyboardInterrupt):
    """Ctrl-C stopped a run, which was saved. `folder` is where it is."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlannedRun:
    """A plan and the data that it is for. Nothing has been released, so any number of plans may be made."""

    plan: Plan
    data: ImageData | ImageStream
    source: dict[str, Any] | None = None
    """Where the data was read from, if it is a path."""
    budget: Path | None = None
    room: str | None = None
    """What is left in the budget, in words."""
    public: PublicImages | None = None
    """Images that are stated to be public."""
    warnings: tuple[str, ...] = ()
    """What is allowed but hardly meant."""
    chosen: str | None = None
    """Which preset was taken and why, where none was asked for."""
    in_python: bool = False
    """Whether it speaks of the arguments of Python, or of the options of the command line."""

    def __str__(self) -> str:
        """The plan in words, what more or less data would buy, and which critic to use."""
        parts = [] if self.room is None else [f"budget:    {self.room}"]
        parts += [] if self.chosen is None else [f"preset:    {self.chosen}"]
        parts.append(describe(self.plan))
        if self.plan.method == "gswgan":
            parts += [outlook(self.plan), advice(self.plan)]
        return self._worded("\n".join(parts))

    def __repr__(self) -> str:
        """The same, after what is allowed but hardly meant: what a notebook shows."""
        return "\n".join([*(self._worded(f"warning: {warning}") for warning in self.warnings), str(self)])

    def _worded(self, text: str) -> str:
        return python_words(text) if self.in_python else text

    def save(self, path: str | Path) -> None:
        """Save the plan to a new file, from which it can be run on another machine."""
        if os.path.lexists(path):
            raise RunError("plan", str(path), "a file that does not exist yet", "Choose another --save-plan.")
        self.plan.save(Path(path))

    def create(self, out: Path) -> RunFolder:
        """The run folder; where it cannot be made, the folders above it that were new go again as well."""
        if self.plan.critic.network_statement():
            read_vgg()  # before there is a folder: a missing file is said now
        new = [path for path in out.absolute().parents if not path.exists()]
        try:
            return RunFolder.create(out, self.plan, source=self.source, budget=self.budget, public=self.public)
        except RunError:
            for path in new:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise


def plan_training(
    opened: Opened,
    options: Mapping[str, Any],
    *,
    saved: Path | None = None,
    name: str | None = None,
    budget: Path | None = None,
    allow_large_delta: bool = False,
    force_spend: bool = False,
    public: Any = None,
) -> PlannedRun:
    """Plan a run on this data. `options` are those of `make_plan`; a `saved` plan is taken as it is.

    `name` is the public name of the data, `public` the source of images that are stated to be public.
    Everything that can be refused is refused here, before any release.
    """
    data, images = opened.data, None if public is None else open_public(public, opened)
    chosen = None
    if saved is not None:
        plan = read_plan(saved)
    else:
        facts = Facts.of(data) if name is None else dataclasses.replace(Facts.of(data), data=name)
        options, chosen = _with_preset(options, facts, opened)
        plan = make_plan(facts, **options, public=None if images is None else PublicFacts.of(images))
    data = data_for(plan, opened)
    check_fits(plan, data)
    check_public(plan, images)
    if images is not None:
        refuse_same_images(data, images)
    check_large_delta(plan, allowed=allow_large_delta)
    check_enough(plan, forced=force_spend)
    check_visible(data, forced=force_spend)
    check_stated(plan)
    room = None if budget is None else Budget(budget).check(plan)
    return PlannedRun(
        plan=plan, data=data, source=opened.source, budget=budget, room=room, public=images,
        warnings=tuple(plan_warnings(plan, data)), chosen=chosen,
    )  # fmt: skip


def _with_preset(options: Mapping[str, Any], facts: Facts, opened: Opened) -> tuple[Mapping[str, Any], str | None]:
    """The options with the usual preset of GS-WGAN where none was asked for, and why it was taken."""
    asked = options.get("preset") is not None or options.get("critics") is not None
    if asked or options.get("method", "gswgan") != "gswgan":
        return options, None
    preset, why = usual_preset(facts, options.get("device", "cpu"), in_files=isinstance(opened.data, ImageStream))
    return {**options, "preset": preset}, why


def open_public(public: Any, opened: Opened) -> PublicImages:
    """Images that are stated to be public, in the shape of the data; refused where their source is that of the data."""
    if opened.source is not None and isinstance(public, str | Path):
        refuse_same_source(opened.source["spec"], public)
    return read_public(public, image_size=opened.data.image_size, channels=opened.data.channels)


def data_for(plan: Plan, opened: Opened) -> ImageData | ImageStream:
    """The data, in memory if the plan's critic goes through it more than once."""
    if isinstance(opened.data, ImageData) or plan.critic.can_stream or opened.source is None:
        return opened.data
    return real_data.load_data(**opened.source)


def check_fits(plan: Plan, data: ImageData | ImageStream) -> None:
    """Refuse data that the plan is not for, before anything is written."""
    facts = Facts.of(data)
    for name in ("records", "persons", "classes", "labelled", "image_size", "channels", "reading"):
        found, planned = getattr(facts, name), getattr(plan.facts, name)
        if found != planned:
            if name == "reading":
                found, planned = found.text or "nothing stated", planned.text or "nothing stated"
            raise PlanError(f"data: {name}", found, f"{planned}, as planned", "Pass the data that the plan is for.")
    divided = find_method(plan.method).takes_critics and not plan.critic.can_stream
    divided &= plan.privacy is None or plan.privacy.critics is not None  # votes, or an ensemble
    if data.persons is not None and divided:
        check_everybody(data.persons, data.number_of_persons)
    if isinstance(data, ImageData) and not plan.critic.can_stream:
        check_own_names(data.repeated_names)


def open_stopped(path: Path) -> RunFolder:
    """The folder of a run that was stopped."""
    folder = RunFolder(path)
    if not folder.model.is_file():
        expected = f"the folder of a run that was stopped{path_problem(path)}"
        raise RunError("resume", str(path), expected, "Check the path (--resume).")
    check_not_over(folder)
    return folder


def needs_data(folder: RunFolder) -> bool:
    """Whether a run still has to see its data: not one on an earlier release, nor one that has ended."""
    return folder.plan().source is None and not folder.is_finished


def check_out(out: Path, *, given: bool = True) -> None:
    """Refuse what cannot be written, or must not be written over, before any work is done."""
    if given and not RunFolder(out).is_vacant():
        raise RunError("out", str(out), "a folder that does not exist yet", "Choose another --out, or --resume it.")
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError("out", str(out), f"a folder that can be made inside {nearest}", "Choose another --out.")


def run_folder(
    folder: RunFolder,
    data: ImageData | ImageStream | None,
    *,
    device: torch.device,
    watch: Watch,
    workers: Workers = 1,
    ranks: Ranks | None = None,
    answerer: Answerer | None = None,
) -> bool:
    """Run the folder's plan from wherever it stands to its end; False if Ctrl-C stopped it, or it waits for others."""
    with few_threads(folder.plan().facts.image_size, device):
        return run(
            folder, data, device=device, progress=watch.step, note=watch.note, workers=workers,
            reading=watch.reading, ranks=ranks, answerer=answerer,
        )  # fmt: skip


@contextmanager
def few_threads(image_size: int, device: torch.device) -> Iterator[None]:
    """One thread for the tiniest images: they gain little from more, and are far slower on a busy machine."""
    before = torch.get_num_threads()
    if image_size <= TINY and device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
