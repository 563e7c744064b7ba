"""Federated runs on the console: what is planned, a bar while clients answer, and what a run leaves."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from gswgan.api.plan_text import describe
from gswgan.api.progress import Watch
from gswgan.api.training import run_folder
from gswgan.cli.console import console, print_json
from gswgan.cli.progress import progress_bar
from gswgan.cli.running import progress_of, run_content
from gswgan.data import ImageData
from gswgan.data.partition import check_own_names
from gswgan.data.persons import read_ids
from gswgan.errors import FederationError, GswganError, PlanError, RunError
from gswgan.federated.by_files import PLAN, read_plan, write_answer
from gswgan.federated.memory import Memory, home_of
from gswgan.federated.messages import answer_bytes
from gswgan.federated.server import Round, check_budget, create_run
from gswgan.federated.silos import check_protect, held, of_unit, protect_of, read_sites, silo_facts
from gswgan.federated.simulation import simulate, site_data, split_data
from gswgan.federated.site import check_site, client_of, read_file, records_of
from gswgan.federated.site_steps import read_turn
from gswgan.federated.stated import class_lines
from gswgan.federated.statement import advice, who_learns_what
from gswgan.federated.trust import (
    for_invented_clients,
    has_rounds,
    is_refined,
    make_federated_plan,
    trust_of,
)
from gswgan.plan.enough import check_enough
from gswgan.plan.facts import Facts
from gswgan.plan.make import check_large_delta, plan_warnings
from gswgan.plan.settings import pick_device
from gswgan.report.explain import outcome_to_each
from gswgan.run.folder import RunFolder

if TYPE_CHECKING:
    import torch

    from gswgan.plan.plan import Plan

CHOICE = ("min_records", "accuracy", "reference_classifier")


def show(plan: Plan) -> None:
    """The plan and how many clients it takes."""
    console.print(describe(plan))
    console.print(advice(plan))


def spread_of(given: dict[str, Any]) -> dict[str, Any] | None:
    """Over which invented clients or sites a simulation spreads its data; None where it has its own persons."""
    number, protect, concentration = given["clients"], given["protect"], given["concentration"]
    if protect == "client" and concentration is None:
        concentration = 1.0
    spread = {} if number is None else {"number": number, "concentration": concentration, "seed": given["seed"]}
    return spread | ({"protect": protect} if protect != "client" else {}) or None


def start_simulation(
    where: dict[str, Any],
    spread: dict[str, Any] | None,
    options: dict[str, Any],
    out: Path | None,
    device: str,
    *,
    json: bool,
) -> None:
    """Plan and hold a run whose clients are all on this machine.

    `where`: the source of the data. `spread`: over how many invented clients, and how. `options`: of the plan, and
    allow_large_delta, force_spend, budget, deadline and dry_run.
    """
    if spread is not None and any(where[name] is not None for name in CHOICE):
        expected = "real persons to choose from"
        raise PlanError("clients", spread.get("number"), expected, "Leave --min-records and --accuracy out.")
    if spread is not None and "protect" in spread:
        ids, facts, images = _simulated_sites(where, spread)
    else:
        ids, facts, images = _simulated_clients(where, spread)
    budget, deadline, dry_run = (options.pop(name) for name in ("budget", "deadline", "dry_run"))
    allowed, forced = options.pop("allow_large_delta"), options.pop("force_spend")
    plan = make_federated_plan(facts, device=pick_device(device).type, **options)
    if is_refined(plan):
        raise PlanError("preset", plan.preset, "a round over the network", "Its rounds are by files: `federate plan`.")
    plan = plan if spread is None or facts.silos is not None else for_invented_clients(plan)
    _check(plan, allowed, forced or dry_run, budget)
    warnings = plan_warnings(plan, images)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if dry_run:
        show(plan)
        if json:
            print_json({"plan": plan.to_json(), "warnings": list(warnings)})
        return
    if out is None:
        raise PlanError("out", None, "a folder for the run", "Pass --out RUN.")
    hold_and_train(create_run(out, plan, ids, deadline, source=where, spread=spread, budget=budget), device, json=json)


def _simulated_clients(
    where: dict[str, Any], spread: dict[str, Any] | None
) -> tuple[tuple[str, ...], Facts, ImageData]:
    images = split_data(where, spread)
    if images.persons is None:
        raise PlanError("data", where["spec"], "data by person", "Pass --clients 50 to spread it, or --group-by.")
    ids = images.person_ids or tuple(map(str, range(images.number_of_persons)))
    return ids, Facts.of(images), images


def _simulated_sites(where: dict[str, Any], spread: dict[str, Any]) -> tuple[tuple[str, ...], Facts, ImageData]:
    """The made-up sites of a simulation, the public facts of what they hold, and all of it."""
    protect = check_protect(spread["protect"])
    if "number" not in spread:
        raise PlanError("clients", None, f"the number of sites with --protect {protect}", "Pass --clients 5, say.")
    images = of_unit(split_data(where), protect)
    sites = [held(name, part, protect) for name, part in site_data(where, spread)]
    by_class = protect == "record" and spread["concentration"] is not None
    name = images.name + ", spread by class over made-up sites, whose sizes depend on it" * by_class
    facts = silo_facts(
        sites, min_sites=None, data=name, class_names=images.class_names, image_size=images.image_size,
        channels=images.channels,
    )  # fmt: skip
    return tuple(site.name for site in sites), facts, images


def public_facts(clients: Path, given: dict[str, Any]) -> tuple[tuple[str, ...], Facts]:
    """The ids and the public facts of a plan of real clients, or of sites with their sizes."""
    names = _class_names(given["classes"], given["class_names"])
    shape = {"image_size": given["image_size"], "channels": given["channels"], "class_names": names}
    protect = check_protect(given["protect"])
    if protect != "client":
        sites = read_sites(clients, protect)
        facts = silo_facts(sites, min_sites=given["min_sites"], data=given["name"], **shape)
        return tuple(site.name for site in sites), facts
    if given["min_sites"] is not None:
        raise PlanError("min_sites", given["min_sites"], "nothing with --protect client", "Leave --min-sites out.")
    ids = read_ids(clients)
    facts = Facts(
        data=given["name"], records=len(ids), persons=len(ids), classes=len(names), labelled=True, **shape
    )  # fmt: skip
    return ids, facts


def _class_names(classes: int | None, path: Path | None) -> tuple[str, ...]:
    if (classes is None) == (path is None):
        raise PlanError("classes", classes, "a number, or --class-names with a file of names", "Pass one of them.")
    return tuple(map(str, range(classes))) if classes is not None else read_ids(path)  # type: ignore[arg-type]


def make_run(out: Path, ids: tuple[str, ...], facts: Facts, options: dict[str, Any]) -> dict[str, Any]:
    """Plan a run of real clients and make its folder; returns what was planned, and the folder, as plain data.

    `options`: of the plan, and allow_large_delta, force_spend, budget, deadline, unauthenticated and dry_run.
    """
    budget, deadline, dry_run = (options.pop(name) for name in ("budget", "deadline", "dry_run"))
    allowed, forced = options.pop("allow_large_delta"), options.pop("force_spend")
    unauthenticated, device = options.pop("unauthenticated"), pick_device(options.pop("device")).type
    plan = make_federated_plan(facts, device=device, **options)
    _check(plan, allowed, forced or dry_run, budget)
    show(plan)
    if not dry_run:
        create_run(out, plan, ids, deadline, budget=budget, unauthenticated=unauthenticated)
        console.print(f"run folder: {out}")
        if not has_rounds(plan):  # the first round
            plan.save(out / PLAN)
            console.print(f"for a round by files, send {out / PLAN} to every site (`gswgan federate answer`)")
    return {"run": None if dry_run else str(out), "plan": plan.to_json()}


def _check(plan: Plan, allow_large_delta: bool, force_spend: bool, budget: Path | None) -> None:
    check_large_delta(plan, allowed=allow_large_delta)
    check_enough(plan, forced=force_spend)
    if budget is not None:
        console.print(f"budget:      {check_budget(plan, budget)}")


def hold_and_train(folder: RunFolder, device: str, *, json: bool) -> None:
    """The kernel critic's round, then its training; or the rounds of Algorithm 2, which are the training."""
    plan, place = folder.plan(), pick_device(device)
    show(plan)
    console.print(f"run folder: {folder.root}")
    if not (folder.is_finished if has_rounds(plan) else Round(folder).is_released):
        _simulate(folder, plan, place)
    train_after_round(folder, place, f"gswgan federate simulate --resume {folder.root}", json=json)


def train_after_round(folder: RunFolder, device: torch.device, command: str, *, json: bool) -> None:
    """What is left after a round; the rounds of Algorithm 2 leave nothing. `command`: with which it goes on."""
    plan, ended = folder.plan(), folder.is_finished
    if not ended and not has_rounds(plan):
        with progress_of(plan) as move:
            ended = run_folder(folder, None, device=device, watch=Watch(step=move, note=console.print))
    if not ended:
        console.print(f"stopped; continue with: {command}")
        raise typer.Exit(130)
    console.print(outcome_to_each(folder), markup=False)
    if json:
        print_json(run_content(folder))


def _simulate(folder: RunFolder, plan: Plan, device: torch.device) -> None:
    if importlib.util.find_spec("flwr") is None:
        raise RunError("flwr", None, "Flower", "Install it: pip install 'gswgan[federated]'.")
    number = plan.facts.persons or 0 if plan.facts.silos is None else len(plan.facts.silos.sites)
    total, what = (plan.training.steps, "round") if has_rounds(plan) else (number, "client")
    with progress_bar(total, what) as move:
        simulate(folder, folder.remembered_source(), note=console.print, device=device, progress=move)


def answer_plan(plan: Path, out: Path, config: dict[str, Any], question: Path | None = None) -> dict[str, Any]:
    """A site's answer to a plan: shows who learns what, records the answer, writes it; returns it as plain data.

    `question`: that of a later round.
    """
    asked = read_plan(plan)
    if question is not None and not is_refined(asked):
        raise FederationError("question", str(question), "a plan of preset refined", "Leave --question out.")
    found = records_of(config)  # whoever starts this hears what is wrong with the records
    if is_refined(asked):
        check_own_names(found.repeated_names)
    me = client_of(config, found=found)
    me.check(asked)  # its limits, before a file as large as the plan says is read
    turn = None if question is None else read_turn(question, asked)
    show(asked)
    learnt = [*who_learns_what(asked, Memory.read(me.home)), *class_lines(found, asked.facts)]
    console.print("\n".join(learnt), markup=False)
    write_answer(out, me, asked, turn)
    console.print(f"answer:    {out}: send it to the operator, who runs `gswgan federate combine`")
    return {"answer": str(out), "who_learns_what": learnt, **spent_content(Memory.read(me.home))}


def inspect_plan(plan: Path, site: Path | None) -> dict[str, Any]:
    """What a plan asks of a site: who sees what, what leaves; returns it as plain data. Nothing is recorded."""
    asked = read_plan(plan)
    show(asked)
    if site is None:
        learnt, refused = who_learns_what(asked), None
    else:
        learnt, refused = _inspect_at(asked, check_site(read_file(site)))
    console.print("\n".join(learnt), markup=False)
    return {
        "plan": asked.digest(), "trust": trust_of(asked), "protect": protect_of(asked), "bytes": answer_bytes(asked),
        "guarantee": asked.cost.to_json(), "who_learns_what": learnt, "refused": refused,
    }  # fmt: skip


def _inspect_at(plan: Plan, config: dict[str, Any]) -> tuple[list[str], str | None]:
    """What a site learns when it looks at a plan with its own records, and why it would refuse the plan."""
    home, found, refused = home_of(Path(str(config["state"])), str(config["client"])), records_of(config), None
    with TemporaryDirectory() as place:  # in place of its state: nothing is recorded
        me = client_of({**config, "state": place}, found=found)
        memory = Memory.read(home if (home / "client.json").exists() else me.home)
        memory = dataclasses.replace(memory, cap=Memory.read(me.home).cap)
        has_answered = any(home.glob(f"{plan.digest()[:32]}/answer.bin"))
        try:
            me.check(plan)
            if not has_answered:
                memory.check_cap(*memory.not_agreed(plan))
            answer = "given: asked again the site sends the same bytes" if has_answered else "this site would give one"
        except GswganError as wrong:
            refused, answer = str(wrong), f"this site REFUSES the plan: {wrong}"
    learnt = [*who_learns_what(plan, memory), *class_lines(found, plan.facts)]
    return [*learnt, f"answer:    {answer}"], refused


def spent_content(memory: Memory) -> dict[str, Any]:
    """What a client has spent against its cap, as plain data."""
    return {
        "client": memory.client, "protect": memory.protect, "answers": len(memory.events),
        "spent_epsilon": memory.spent,
        "cap_epsilon": memory.cap.epsilon, "delta": memory.cap.delta, "neighbours": memory.cap.neighbours,
    }  # fmt: skip
