"""`gswgan federate debug`: find a bug in clients' data by looking at fakes (the paper's debugging task)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gswgan.cli.console import console
from gswgan.cli.running import progress_of
from gswgan.errors import PlanError, RunError

if TYPE_CHECKING:
    import torch

    from gswgan.data import ImageData
    from gswgan.evaluation.debugging import SuspicionRule
    from gswgan.plan.plan import Facts, Plan


def debug(
    data: Annotated[str, typer.Option(help="Data by person, as for `gswgan train`.")] = "mnist-writers",
    public: Annotated[str, typer.Option(help="Public labelled data by person, as DATA or DATA:SPLIT.")] = (
        "mnist-writers:test"
    ),
    method: Annotated[str, typer.Option(help="gswgan or fed-avg-gan.")] = "gswgan",
    preset: Annotated[str | None, typer.Option(
        help="default (kernel critic) or ensemble (Algorithm 2); noise-0.01, noise-0.1 or noise-0.5.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon, for both together. Default: 10.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta, well below 1 / clients.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each generator; rounds of Algorithm 2.")] = None,
    rate: Annotated[float | None, typer.Option(help="Share of the clients in a round of Algorithm 2.")] = None,
    seed: Annotated[int, typer.Option(help="Also chooses who has the bug.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    save_plan: Annotated[Path | None, typer.Option(help="Save the plan to this file, then stop.")] = None,
    plan_file: Annotated[Path | None, typer.Option("--plan",
        help="Run a saved plan (needs no dp-accounting).")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to make, or to go on in.")] = None,
) -> None:  # fmt: skip
    """Invert the images of half of the clients, then look for it: `gswgan federate debug --out DEBUG`.

    Each client decides alone, by a classifier of public data, whether it is suspected; it answers for that group and
    counts as zero in the other. Two generators are trained, and DEBUG/debug.html shows both. All clients are computed
    here, with a trusted aggregator. The same command goes on where it stopped.
    """
    from gswgan.data import load_data
    from gswgan.evaluation.debugging import GROUPS, with_bug
    from gswgan.plan.plan import Facts, Plan
    from gswgan.report.debugging import write_page
    from gswgan.run.released import pick_device

    if (out is None) == (save_plan is None):
        raise PlanError("out", None, "a folder for the runs, or --save-plan", "Pass one of them.")
    if save_plan is not None and os.path.lexists(save_plan):
        raise RunError("plan", str(save_plan), "a file that does not exist yet", "Choose another --save-plan.")
    images = load_data(data)
    kind = device if save_plan is not None and device != "auto" else pick_device(device).type
    if plan_file is not None:
        plan = Plan.load(plan_file)
    else:
        wishes = {"epsilon": epsilon, "delta": delta, "steps": steps, "rate": rate}
        plan = _plan(Facts.of(images), method, preset, seed=seed, device=kind, **wishes)
    console.print(f"{plan.method}, {plan.preset}: {plan.guarantee}, for both generators together")
    if save_plan is not None:
        plan.save(save_plan)
        return
    assert out is not None
    faulty, where = with_bug(images, seed=seed), pick_device(device)
    rule = _suspicion_rule(out, public, where)
    console.print(f"suspected: below an accuracy of {rule.threshold:.3f}, fixed on {public}")
    for group, part in rule.parts(faulty).items():
        _train(out / group, plan, part, where)
    found = write_page(out, plan, threshold=rule.threshold, public=public)
    for group in GROUPS:
        console.print(f"{group + ':':12} {found['bright_share'][group]:.3f} of the images have a bright background")
    console.print(f"page:        {out / 'debug.html'}")


def _plan(facts: Facts, method: str, preset: str | None, *, rate: float | None, **options: object) -> Plan:
    from gswgan.federated.critic_plan import make_critic_plan
    from gswgan.federated.trust import make_federated_plan
    from gswgan.plan.make import make_plan

    given: dict[str, object] = {name: value for name, value in options.items() if value is not None}
    if method == "fed-avg-gan":
        return make_plan(facts, method=method, preset=preset, **given)  # type: ignore[arg-type]
    if method != "gswgan" or preset not in (None, "kernel", "ensemble"):
        raise PlanError("method and preset", (method, preset), "gswgan with default or ensemble, or fed-avg-gan")
    if preset == "ensemble":
        rounds = given.pop("steps", None)
        return make_critic_plan(facts, rounds=rounds, rate=rate, **given)  # type: ignore[arg-type]
    return make_federated_plan(facts, **given)  # type: ignore[arg-type]


def _suspicion_rule(out: Path, public: str, device: torch.device) -> SuspicionRule:
    """The public classifier and its threshold: kept in the folder, or made."""
    from gswgan.data import load_data
    from gswgan.evaluation.debugging import SuspicionRule, fit_suspicion_rule
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
    rule = fit_suspicion_rule(load_data(name, split=split or "train"), device=device)
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
