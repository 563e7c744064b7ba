"""`gswgan federate`: data that stays with its people, on Flower (extra `federated`)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gswgan.cli.console import console
from gswgan.cli.running import limit_threads, progress_of
from gswgan.errors import PlanError, RunError

if TYPE_CHECKING:
    from gswgan.plan.plan import Facts, Plan
    from gswgan.run.folder import RunFolder

app = typer.Typer(
    no_args_is_help=True, help="Train on data that stays with its people, on Flower, protecting each person."
)
_DATA, _GUARANTEE, _RUN = "Data", "Guarantee", "Run"
_TRUST = (
    "trusted-aggregator (the server adds the noise; promises one client zeroed) or untrusted-server (each client adds "
    "its own; promises one client replaced, to the server too)."
)

Preset = Annotated[str, typer.Option(
    help="default (kernel critic, one round), ensemble (Algorithm 2: a critic at each client) or paper-federated "
    "(Algorithm 2 as published).", rich_help_panel=_RUN)]  # fmt: skip
TrustOption = Annotated[str | None, typer.Option(help=_TRUST, rich_help_panel=_GUARANTEE)]
Rounds = Annotated[int | None, typer.Option(help="Rounds of Algorithm 2. Default: 100.", rich_help_panel=_RUN)]
Rate = Annotated[float | None, typer.Option(
    help="Share of the clients that a trusted aggregator draws in a round of Algorithm 2.",
    rich_help_panel=_RUN)]  # fmt: skip
Epsilon = Annotated[float | None, typer.Option(help="Target epsilon. Default: 10.", rich_help_panel=_GUARANTEE)]
Delta = Annotated[float | None, typer.Option(
    help="Target delta, well below 1 / clients. Default: the preset's, 1e-5, and 0.1 / clients from 100,000 on.",
    rich_help_panel=_GUARANTEE)]  # fmt: skip
LargeDelta = Annotated[bool, typer.Option("--allow-large-delta",
    help="Take a delta of 1 / clients or more, which is refused otherwise: it allows one client's data to be published "
    "in the clear.", rich_help_panel=_GUARANTEE)]  # fmt: skip
BudgetOption = Annotated[Path | None, typer.Option(
    help="Enter the release of a trusted aggregator into this budget file before anybody is asked; refused if all "
    "runs in it together would go beyond its budget (`gswgan budget`).", rich_help_panel=_GUARANTEE)]  # fmt: skip
Steps = Annotated[int | None, typer.Option(help="Training steps after the round.", rich_help_panel=_RUN)]
Seed = Annotated[int, typer.Option(help="Fixes initial weights and latent codes; never the noise.",
                                   rich_help_panel=_RUN)]  # fmt: skip
Deadline = Annotated[float, typer.Option(
    help="Seconds until a round closes; who has not answered counts as zero.", rich_help_panel=_RUN)]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run",
    help="Print the plan and how many clients it takes. Nothing is released.", rich_help_panel=_RUN)]  # fmt: skip
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=_RUN)]


@app.command()
def simulate(
    data: Annotated[str, typer.Option(
        help="As for `gswgan train`; by person (mnist-writers), or with --clients.", rich_help_panel=_DATA)] = "digits",
    clients: Annotated[int | None, typer.Option(
        help="Spread the data over so many invented clients, which are no persons.", rich_help_panel=_DATA)] = None,
    concentration: Annotated[float, typer.Option(
        help="How even their classes are: large for even, far below 1 for few classes each.",
        rich_help_panel=_DATA)] = 1.0,
    classes: Annotated[int | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    image_size: Annotated[int | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    group_by: Annotated[Path | None, typer.Option(
        help="A file with one person id a record.", rich_help_panel=_DATA)] = None,
    min_records: Annotated[int | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    accuracy: Annotated[str | None, typer.Option(
        metavar="FROM..TO", help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    reference_classifier: Annotated[Path | None, typer.Option(
        help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    preset: Preset = "kernel",
    trust: TrustOption = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    allow_large_delta: LargeDelta = False,
    steps: Steps = None,
    rounds: Rounds = None,
    rate: Rate = None,
    seed: Seed = 0,
    deadline: Deadline = 600.0,
    budget: BudgetOption = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.", rich_help_panel=_RUN)] = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    resume: Annotated[Path | None, typer.Option(help="Continue this run.", rich_help_panel=_RUN)] = None,
) -> None:  # fmt: skip
    """All clients on this machine: `gswgan federate simulate --data digits --clients 50 --out RUN`."""
    from gswgan.data.sources import NAMES
    from gswgan.federated.server import create_run
    from gswgan.federated.simulation import split_data
    from gswgan.federated.trust import for_invented_clients
    from gswgan.plan.make import check_large_delta, plan_warnings
    from gswgan.plan.plan import Facts
    from gswgan.run.folder import RunFolder
    from gswgan.run.released import pick_device

    if resume is not None:
        if budget is not None:
            raise PlanError("options", "--budget", "nothing of the kind with --resume", "Leave it out.")
        _hold_and_train(RunFolder(resume), device)
        return
    spec = data if data in NAMES else str(Path(data).absolute())
    where: dict[str, Any] = {"spec": spec, "classes": classes, "image_size": image_size}
    where["group_by"] = None if group_by is None else str(group_by.absolute())
    where |= {"min_records": min_records, "accuracy": accuracy}
    where["reference_classifier"] = None if reference_classifier is None else str(reference_classifier.absolute())
    if clients is not None and (min_records, accuracy, reference_classifier) != (None, None, None):
        raise PlanError("clients", clients, "real persons to choose from", "Leave --min-records and --accuracy out.")
    spread = None if clients is None else {"number": clients, "concentration": concentration, "seed": seed}
    images = split_data(where, spread)
    if images.persons is None:
        raise PlanError("data", data, "data by person", "Pass --clients 50 to spread it, or --group-by.")
    plan = _make_plan(
        Facts.of(images), preset, trust=trust, epsilon=epsilon, delta=delta, steps=steps, rounds=rounds, rate=rate,
        seed=seed, device=pick_device(device).type,
    )  # fmt: skip
    check_large_delta(plan := for_invented_clients(plan) if spread else plan, allowed=allow_large_delta)
    for doubt in plan_warnings(plan, images):
        print(f"warning: {doubt}", file=sys.stderr)
    _check_budget(plan, budget)
    if dry_run:
        show(plan)
        return
    if out is None:
        raise PlanError("out", None, "a folder for the run", "Pass --out RUN.")
    ids = images.person_ids or tuple(map(str, range(images.number_of_persons)))
    _hold_and_train(create_run(out, plan, ids, deadline, source=where, spread=spread, budget=budget), device)


@app.command()
def plan(
    out: Annotated[Path, typer.Option(help="The run folder to make.", rich_help_panel=_RUN)],
    clients: Annotated[Path, typer.Option(
        help="A text file with the id of every client that may answer, one a line.", rich_help_panel=_DATA)],
    classes: Annotated[int, typer.Option(help="Number of classes.", rich_help_panel=_DATA)],
    image_size: Annotated[int, typer.Option(help="Side of the images.", rich_help_panel=_DATA)],
    channels: Annotated[int, typer.Option(help="1 (grey) or 3 (colour).", rich_help_panel=_DATA)] = 1,
    name: Annotated[str, typer.Option(help="What to call the data.", rich_help_panel=_DATA)] = "federated",
    preset: Preset = "kernel",
    trust: TrustOption = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    allow_large_delta: LargeDelta = False,
    steps: Steps = None,
    rounds: Rounds = None,
    rate: Rate = None,
    seed: Seed = 0,
    deadline: Deadline = 3600.0,
    budget: BudgetOption = None,
    unauthenticated: Annotated[bool, typer.Option("--unauthenticated",
        help="Nodes have no keys: a client's id may move to a new node when its old one has gone. For trials.",
        rich_help_panel=_RUN)] = False,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """A run folder for real clients, from public facts alone; the round is held by files, or by Flower."""
    from gswgan.critics.kernel.features import KernelSettings
    from gswgan.data.persons import read_persons
    from gswgan.federated.by_files import PLAN
    from gswgan.federated.server import create_run
    from gswgan.plan.make import check_large_delta
    from gswgan.plan.plan import Facts

    ids = tuple(map(str, read_persons(clients)))
    facts = Facts(
        data=name, records=len(ids), persons=len(ids), classes=classes, class_names=tuple(map(str, range(classes))),
        labelled=True, image_size=image_size, channels=channels,
    )  # fmt: skip
    made = _make_plan(
        facts, preset, trust=trust, epsilon=epsilon, delta=delta, steps=steps, rounds=rounds, rate=rate, seed=seed,
        device="cpu",
    )  # fmt: skip
    check_large_delta(made, allowed=allow_large_delta)
    _check_budget(made, budget)
    show(made)
    if not dry_run:
        create_run(out, made, ids, deadline, budget=budget, unauthenticated=unauthenticated)
        console.print(f"run folder: {out}")
        if isinstance(made.critic, KernelSettings):
            made.save(out / PLAN)
            console.print(f"for a round by files, send {out / PLAN} to every site (`gswgan federate answer`)")


@app.command(name="app")
def app_folder() -> None:
    """Print the folder of the Flower app, for `flwr run`."""
    print(Path(str(importlib.util.find_spec("gswgan.federated").origin)).parent / "app")  # type: ignore[union-attr]


@app.command()
def status(
    state: Annotated[Path, typer.Argument(
        metavar="STATE|RUN", help="Where a client keeps its state, or the folder of a simulated run.")],
) -> None:  # fmt: skip
    """What each client has spent against its cap, from its own ledger."""
    from gswgan.federated.memory import memories

    inside = state / "private" / "clients"
    table = Table("client", "answers", "epsilon spent", "cap", "at", title_justify="left")
    for memory in memories(inside if inside.is_dir() else state):
        how = {"zeroed": "one client zeroed", "replace-one": "one client replaced"}[memory.cap.neighbours]
        table.add_row(
            memory.client, str(len(memory.events)), f"{memory.spent:.4g}", f"{memory.cap.epsilon:.4g}",
            f"delta {memory.cap.delta:g}, {how}",
        )  # fmt: skip
    console.print(table)
    console.print("An answer is counted before it is sent, so also where it never arrived.")


def _make_plan(
    facts: Facts,
    preset: str,
    *,
    trust: str | None,
    steps: int | None,
    rounds: int | None,
    rate: float | None,
    **options: Any,
) -> Plan:
    from gswgan.federated.critic_plan import make_critic_plan
    from gswgan.federated.trust import check_trust, make_federated_plan

    known = ("kernel", "ensemble", "paper-federated")
    if preset not in known:
        raise PlanError("preset", preset, "one of " + ", ".join(known))
    found = check_trust(trust or ("untrusted-server" if preset == "paper-federated" else "trusted-aggregator"))
    if preset == "kernel":
        if rounds is not None or rate is not None:
            raise PlanError("rounds", rounds, "no rounds and no rate: the kernel critic takes one", "Leave them out.")
        return make_federated_plan(facts, trust=found, steps=steps, **options)
    if steps is not None:
        raise PlanError("steps", steps, "no steps: a round of Algorithm 2 is one", "Pass --rounds.")
    return make_critic_plan(facts, preset=preset, trust=found, rounds=rounds, rate=rate, **options)


def _check_budget(plan: Plan, budget: Path | None) -> None:
    from gswgan.federated.server import check_budget

    if budget is not None:
        console.print(f"budget:      {check_budget(plan, budget)}")


def show(plan: Plan) -> None:
    """The plan and how many clients it takes."""
    from gswgan.cli.plan_text import describe
    from gswgan.critics.kernel.features import KernelSettings
    from gswgan.federated import critic_plan, trust

    console.print(describe(plan))
    console.print((trust if isinstance(plan.critic, KernelSettings) else critic_plan).advice(plan))


def _hold_and_train(folder: RunFolder, device: str) -> None:
    """The kernel critic's round, then its training; or the rounds of Algorithm 2, which are the training."""
    from gswgan.critics.kernel.features import KernelSettings
    from gswgan.federated.server import Round
    from gswgan.run.loop import run
    from gswgan.run.released import pick_device

    plan, where = folder.plan(), pick_device(device)
    show(plan)
    console.print(f"run folder: {folder.root}")
    one_round = isinstance(plan.critic, KernelSettings)
    if not (Round(folder).is_released if one_round else folder.is_finished):
        _simulate(folder, plan, "clients" if one_round else "rounds", where)
    limit_threads(plan.facts.image_size, where)
    ended = folder.is_finished
    if one_round:
        with progress_of(plan) as move:
            ended = run(folder, None, device=where, progress=move, note=console.print)
    if not ended:
        console.print(f"stopped; continue with: gswgan federate simulate --resume {folder.root}")
        raise typer.Exit(130)
    tell(folder)


def _simulate(folder: RunFolder, plan: Plan, what: str, device: Any) -> None:
    if importlib.util.find_spec("flwr") is None:
        raise RunError("flwr", None, "Flower", "Install it: pip install 'gswgan[federated]'.")
    from gswgan.federated.simulation import simulate as hold

    total = plan.facts.persons if what == "clients" else plan.training.steps
    columns = (TextColumn(f"{{task.completed}} of {{task.total}} {what}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        hold(
            folder, folder.remembered_source(), note=bar.console.print, device=device,
            progress=lambda done: bar.update(task, completed=done),
        )  # fmt: skip


def tell(folder: RunFolder) -> None:
    """What a finished run has made, and what is guaranteed to whom."""
    from gswgan.report.explain import outcome_to_each

    console.print(outcome_to_each(folder), markup=False)
