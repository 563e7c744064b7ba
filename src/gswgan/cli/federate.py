"""`gswgan federate`: data that stays with its people, in one round on Flower (extra `federated`)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gswgan.cli.console import console, progress_bar
from gswgan.errors import PlanError, RunError

if TYPE_CHECKING:
    from gswgan.federated.round import Round

app = typer.Typer(
    no_args_is_help=True, help="Train on data that stays with its people: one round on Flower, protecting each person."
)
_DATA, _GUARANTEE, _RUN = "Data", "Guarantee", "Run"
_TRUST = (
    "trusted-aggregator (the server adds the noise; promises one client zeroed) or untrusted-server (each client adds "
    "its own; promises one client replaced, to the server too)."
)

TrustOption = Annotated[str, typer.Option(help=_TRUST, rich_help_panel=_GUARANTEE)]
Epsilon = Annotated[float | None, typer.Option(help="Target epsilon. Default: 10.", rich_help_panel=_GUARANTEE)]
Delta = Annotated[float | None, typer.Option(
    help="Target delta, well below 1 / clients. Default: 1e-5.", rich_help_panel=_GUARANTEE)]  # fmt: skip
Steps = Annotated[int | None, typer.Option(help="Training steps after the round.", rich_help_panel=_RUN)]
Seed = Annotated[int, typer.Option(help="Fixes initial weights and latent codes; never the noise.",
                                   rich_help_panel=_RUN)]  # fmt: skip
Deadline = Annotated[float, typer.Option(
    help="Seconds until the round closes; who has not answered counts as zero.", rich_help_panel=_RUN)]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run",
    help="Print the plan and how many clients it takes. Nothing is released.", rich_help_panel=_RUN)]  # fmt: skip
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=_RUN)]


@app.command()
def simulate(
    data: Annotated[str, typer.Option(
        help="As for `gswgan train`; by person (mnist-writers), or with --clients.", rich_help_panel=_DATA)] = "digits",
    clients: Annotated[int | None, typer.Option(
        help="Spread the data over so many made-up clients.", rich_help_panel=_DATA)] = None,
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
    judge: Annotated[Path | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    trust: TrustOption = "trusted-aggregator",
    epsilon: Epsilon = None,
    delta: Delta = None,
    steps: Steps = None,
    seed: Seed = 0,
    deadline: Deadline = 600.0,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.", rich_help_panel=_RUN)] = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    resume: Annotated[Path | None, typer.Option(help="Continue this run.", rich_help_panel=_RUN)] = None,
) -> None:  # fmt: skip
    """All clients on this machine: `gswgan federate simulate --data digits --clients 50 --out RUN`."""
    from gswgan.data.sources import NAMES
    from gswgan.federated.round import Round
    from gswgan.federated.simulation import split_data
    from gswgan.federated.trust import check_trust, make_federated_plan
    from gswgan.synthesizer import pick_device
    from gswgan.training.plan import Facts
    from gswgan.training.planner import doubts
    from gswgan.training.run_folder import RunFolder

    if resume is not None:
        _hold_and_train(Round(RunFolder(resume)), device)
        return
    spec = data if data in NAMES else str(Path(data).absolute())
    where: dict[str, Any] = {"spec": spec, "classes": classes, "image_size": image_size}
    where["group_by"] = None if group_by is None else str(group_by.absolute())
    where |= {"min_records": min_records, "accuracy": accuracy}
    where["judge"] = None if judge is None else str(judge.absolute())
    if clients is not None and (min_records, accuracy, judge) != (None, None, None):
        raise PlanError("clients", clients, "real persons to choose from", "Leave --min-records and --accuracy out.")
    spread = None if clients is None else {"number": clients, "concentration": concentration, "seed": seed}
    images = split_data(where, spread)
    if images.persons is None:
        raise PlanError("data", data, "data by person", "Pass --clients 50 to spread it, or --group-by.")
    plan = make_federated_plan(
        Facts.of(images), trust=check_trust(trust), epsilon=epsilon, delta=delta, steps=steps, seed=seed,
        device=pick_device(device).type,
    )  # fmt: skip
    for doubt in doubts(plan, images):
        print(f"warning: {doubt}", file=sys.stderr)
    if dry_run:
        _show(plan)
        return
    if out is None:
        raise PlanError("out", None, "a folder for the run", "Pass --out RUN.")
    ids = images.person_ids or tuple(map(str, range(images.number_of_persons)))
    _hold_and_train(Round.create(out, plan, ids, deadline, source=where, spread=spread), device)


@app.command()
def plan(
    out: Annotated[Path, typer.Option(help="The run folder to make.", rich_help_panel=_RUN)],
    clients: Annotated[Path, typer.Option(
        help="A text file with the id of every client that may answer, one a line.", rich_help_panel=_DATA)],
    classes: Annotated[int, typer.Option(help="Number of classes.", rich_help_panel=_DATA)],
    image_size: Annotated[int, typer.Option(help="Side of the images.", rich_help_panel=_DATA)],
    channels: Annotated[int, typer.Option(help="1 (grey) or 3 (colour).", rich_help_panel=_DATA)] = 1,
    name: Annotated[str, typer.Option(help="What to call the data.", rich_help_panel=_DATA)] = "federated",
    trust: TrustOption = "trusted-aggregator",
    epsilon: Epsilon = None,
    delta: Delta = None,
    steps: Steps = None,
    seed: Seed = 0,
    deadline: Deadline = 3600.0,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """A run folder for real clients, from public facts alone; `flwr run` then holds the round (docs/federated.md)."""
    from gswgan.data.persons import read_persons
    from gswgan.federated.round import Round
    from gswgan.federated.trust import check_trust, make_federated_plan
    from gswgan.training.plan import Facts

    ids = tuple(map(str, read_persons(clients)))
    facts = Facts(
        data=name, records=len(ids), persons=len(ids), classes=classes, class_names=tuple(map(str, range(classes))),
        labelled=True, image_size=image_size, channels=channels,
    )  # fmt: skip
    made = make_federated_plan(facts, trust=check_trust(trust), epsilon=epsilon, delta=delta, steps=steps, seed=seed)
    _show(made)
    if not dry_run:
        Round.create(out, made, ids, deadline)
        console.print(f"run folder: {out}")


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
    from gswgan.federated.client import memories

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


def _show(plan: Any) -> None:
    from gswgan.cli.plan_text import describe
    from gswgan.federated.trust import advice

    console.print(describe(plan))
    console.print(advice(plan))


def _hold_and_train(held: Round, device: str) -> None:
    import torch

    from gswgan.cli.explain import outcome
    from gswgan.privacy import PrivacyCost
    from gswgan.synthesizer import pick_device
    from gswgan.training.centralized import run
    from gswgan.training.defaults import TINY
    from gswgan.training.run_folder import read_json
    from gswgan.training.settings import from_plain

    folder, plan = held.folder, held.plan
    _show(plan)
    console.print(f"run folder: {folder.root}")
    if not held.is_released:
        if importlib.util.find_spec("flwr") is None:
            raise RunError("flwr", None, "Flower", "Install it: pip install 'gswgan[federated]'.")
        from gswgan.federated.simulation import simulate as hold

        columns = (TextColumn("{task.completed} of {task.total} clients"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=len(held.roster), completed=len(held.answered))
            hold(
                held, folder.remembered_source(), held.spread, note=bar.console.print,
                progress=lambda done: bar.update(task, completed=done),
            )  # fmt: skip
    if plan.facts.image_size <= TINY and pick_device(device).type == "cpu":
        torch.set_num_threads(1)
    with progress_bar(plan.training.steps, lambda done: str(plan.guarantee)) as move:
        ended = run(folder, None, device=pick_device(device), progress=move, note=console.print)
    if not ended:
        console.print(f"stopped; continue with: gswgan federate simulate --resume {folder.root}")
        raise typer.Exit(130)
    console.print(outcome(folder))
    statement = read_json(folder.privacy, "privacy.json")
    for other in statement["guarantees"][1:]:
        console.print(f"also:      {from_plain(PrivacyCost, other)}")
    for other in statement["open_to"]:
        console.print(f"NO guarantee towards the {other['observer']}: {other['why']}")
