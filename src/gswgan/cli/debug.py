"""`gswgan federate debug`: find a bug in clients' data by looking at fakes (the paper's debugging task)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gswgan.cli.console import Json, console, print_json
from gswgan.cli.debug_sites import SITE_OPTIONS, look_at_sites
from gswgan.cli.reading_options import (
    Background,
    Channels,
    Classes,
    GroupBy,
    ImageSize,
    Layout,
    Missing,
    PixelRange,
    reading_of,
)
from gswgan.cli.running import progress_of
from gswgan.errors import DataError, PlanError, RunError

if TYPE_CHECKING:
    import torch

    from gswgan.data import ImageData
    from gswgan.evaluation.debugging import SuspicionRule
    from gswgan.plan.facts import Facts
    from gswgan.plan.plan import Plan

Option = typer.Option
_PLANNED = ("method", "preset", "epsilon", "delta", "steps", "rate", "seed")


def debug(
    data: Annotated[str, Option(
        help="Data by person, as for `gswgan train`; with --protect record any data.")] = "mnist-writers",
    protect: Annotated[str, Option(
        help="client (persons are clients), or record or person: the scanner of one of a few sites is broken.",
        )] = "client",
    sites: Annotated[int, Option(help="With --protect record or person: the number of made-up sites.")] = 3,
    public: Annotated[str, Option(
        help="Public labelled data by person, as DATA or DATA:SPLIT; read as --data is, but for a table of persons.",
        )] = "mnist-writers:test",
    classes: Classes = None,
    image_size: ImageSize = None,
    channels: Channels = None,
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    group_by: GroupBy = None,
    missing: Missing = None,
    method: Annotated[str, Option(help="gswgan or fed-avg-gan.")] = "gswgan",
    preset: Annotated[str | None, Option(
        help="kernel (kernel critic) or ensemble (Algorithm 2); noise-0.01, noise-0.1 or noise-0.5.")] = None,
    epsilon: Annotated[float | None, Option(help="Target epsilon, for both together. Default: 10.")] = None,
    delta: Annotated[float | None, Option(help="Target delta, well below 1 / clients.")] = None,
    steps: Annotated[int | None, Option(help="Steps of each generator; rounds of Algorithm 2.")] = None,
    rate: Annotated[float | None, Option(help="Share of the clients in a round of Algorithm 2.")] = None,
    seed: Annotated[int, Option(help="Also chooses who has the bug.")] = 0,
    device: Annotated[str, Option(help="cpu, cuda or auto.")] = "auto",
    save_plan: Annotated[Path | None, Option(help="Save the plan to this file, then stop.")] = None,
    plan_file: Annotated[Path | None, Option("--plan", help="Run a saved plan (needs no dp-accounting).")] = None,
    out: Annotated[Path | None, Option(help="The folder to make, or to go on in.")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Invert the images of half of the clients, then look for it: `gswgan federate debug --out DEBUG`.

    Each client decides alone, by a classifier of public data, whether it is suspected; it answers for that group and
    counts as zero in the other. Two generators are trained, and DEBUG/debug.html shows both. All clients are computed
    here, with a trusted aggregator. The same command goes on where it stopped.

    With --protect record or person the images of one of a few sites are inverted. Every site makes a generator of its
    own records, and DEBUG/debug.html shows all of them. Sites hold different records: all together cost what one does.
    """
    given = dict(locals())
    options = {name: given[name] for name in _PLANNED if given[name] is not None}
    if protect == "client":
        found = _debug_clients(given, options)
    else:
        alike = {name: options.get(name) for name in SITE_OPTIONS}
        found = look_at_sites(data, reading_of(given), protect, sites, alike, device=device, out=out, train=_train)
    if json:
        print_json(found)


def _debug_clients(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Plan, save the plan or look for the bug of clients; returns what was found as plain data."""
    from gswgan.methods import read_plan
    from gswgan.plan.facts import Facts

    out, save_plan, plan_file, device = (given[name] for name in ("out", "save_plan", "plan_file", "device"))
    reading = reading_of(given)
    _check_places(out, save_plan)
    images = _read_clients(given["data"], reading)
    plan = read_plan(plan_file) if plan_file else _plan(Facts.of(images), _kind(device, save_plan), **options)
    console.print(f"{plan.method}, {plan.preset}: {plan.guarantee}, for both generators together")
    if save_plan is not None:
        plan.save(save_plan)
    if out is None:
        return {"plan": plan.to_json()}
    return _look_for_bug(out, plan, images, given["public"], reading, given["seed"], device)


def _check_places(out: Path | None, save_plan: Path | None) -> None:
    if (out is None) == (save_plan is None):
        raise PlanError("out", None, "a folder for the runs, or --save-plan", "Pass one of them.")
    if save_plan is not None and os.path.lexists(save_plan):
        raise RunError("plan", str(save_plan), "a file that does not exist yet", "Choose another --save-plan.")


def _read_clients(data: str, reading: dict[str, Any]) -> ImageData:
    from gswgan.data import load_data

    images = load_data(data, **reading)
    if images.persons is None:
        expected = "records by person, since clients are persons here"
        raise DataError("data", data, expected, "Pass --layout person/class/ or --group-by, or data by person.")
    return images


def _kind(device: str, save_plan: Path | None) -> str:
    """For which kind of device is planned; a plan that is saved may be for another machine."""
    from gswgan.plan.settings import pick_device

    return device if save_plan is not None and device != "auto" else pick_device(device).type


def _plan(facts: Facts, device: str, method: str, preset: str | None = None, **options: Any) -> Plan:
    from gswgan.federated.trust import make_federated_plan
    from gswgan.methods import make_plan

    if method == "fed-avg-gan":
        options.pop("rate", None)
        return make_plan(facts, method=method, preset=preset, device=device, **options)
    if method != "gswgan" or preset not in (None, "kernel", "ensemble"):
        raise PlanError("method and preset", (method, preset), "gswgan with kernel or ensemble, or fed-avg-gan")
    if preset == "ensemble":
        options["rounds"] = options.pop("steps", None)
    else:
        options.pop("rate", None)
    return make_federated_plan(facts, preset=preset or "kernel", trust="trusted-aggregator", device=device, **options)


def _look_for_bug(
    out: Path, plan: Plan, images: ImageData, public: str, reading: dict[str, Any], seed: int, device: str
) -> dict[str, Any]:
    """Train both generators on data with the bug, and show what they draw; returns it as plain data."""
    from gswgan.evaluation.debugging import GROUPS, with_bug
    from gswgan.plan.enough import check_enough
    from gswgan.plan.settings import pick_device
    from gswgan.report.debugging import write_page

    check_enough(plan, forced=None)
    faulty, place = with_bug(images, seed=seed), pick_device(device)
    rule = _suspicion_rule(out, images, public, reading, place)
    console.print(f"suspected: below an accuracy of {rule.threshold:.3f}, fixed on {public}")
    for group, part in rule.parts(faulty).items():
        _train(out / group, plan, part, place)
    found = write_page(out, plan, threshold=rule.threshold, public=public)
    for group in GROUPS:
        console.print(f"{group + ':':12} {found['bright_share'][group]:.3f} of the images have a bright background")
    console.print(f"page:        {out / 'debug.html'}")
    return {**found, "page": str(out / "debug.html")}


def _suspicion_rule(
    out: Path, images: ImageData, public: str, reading: dict[str, Any], device: torch.device
) -> SuspicionRule:
    """The public classifier and its threshold: kept in the folder, or made."""
    from gswgan.data import load_data
    from gswgan.data.persons import is_table
    from gswgan.evaluation.debugging import SuspicionRule, fit_suspicion_rule
    from gswgan.evaluation.real_data import match_classes
    from gswgan.evaluation.reference_classifier import ReferenceClassifier
    from gswgan.privacy.storage import make_folder
    from gswgan.run.folder import read_json, write_json

    classifier, facts = out / "public.safetensors", out / "public.json"
    if facts.exists():
        known = read_json(facts, "the public.json of a debugging run")
        if known["public"] != public:
            raise RunError("public", public, f"{known['public']}, as this folder was begun with")
        return SuspicionRule(ReferenceClassifier.load(classifier, device), float(known["threshold"]))
    console.print(f"learning a classifier from {public}")
    name, _, split = public.partition(":")
    if reading.get("group_by") is not None and is_table(reading["group_by"]):  # it lists the other data
        reading = reading | {"group_by": None, "missing": None}
    found = load_data(name, split=split or "train", **reading)
    if found.images.shape[1:] != images.images.shape[1:]:
        expected = f"images {images.images.shape[1:]}, as --data has"
        raise DataError("public", f"images {found.images.shape[1:]}", expected, "Pass other --public.")
    rule = fit_suspicion_rule(match_classes(found, images.class_names, "public: classes"), device=device)
    make_folder(out)
    rule.classifier.save(classifier)
    write_json(facts, {"public": public, "threshold": rule.threshold})
    return rule


def _train(place: Path, plan: Plan, data: ImageData, device: torch.device) -> None:
    """A group's run, from wherever it stands."""
    from gswgan.run.folder import RunFolder
    from gswgan.run.loop import run

    folder = RunFolder(place)
    if folder.model.exists():
        if folder.plan().digest() != plan.digest():
            raise RunError("plan", str(place), "the plan that this folder was begun with", "Choose another --out.")
    else:
        folder = RunFolder.create(place, plan)
    if folder.is_finished:
        return
    console.print(place.name)
    with progress_of(plan) as move:
        ended = run(folder, data, device=device, progress=move, note=console.print)
    if not ended:
        console.print("stopped; the same command goes on")
        raise typer.Exit(130)
