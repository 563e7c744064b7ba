"""`gswgan federate`: federated training, on Flower (extra `federated`) or by files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import Json, console, print_json
from gswgan.cli.federate_status import inspect, status
from gswgan.cli.reading_options import PERSONS, READING, Background, GroupBy, Layout, Missing, PixelRange, reading_of
from gswgan.errors import FederationError, PlanError

app = typer.Typer(
    no_args_is_help=True, help="Train on data that stays with its clients, on Flower or by files, protecting each one."
)
app.command()(inspect)
app.command()(status)
_DATA, _GUARANTEE, _RUN = "Data", "Guarantee", "Run"
_TRUST = (
    "trusted-aggregator (the server adds the noise; promises one client zeroed) or untrusted-server (each client adds "
    "its own; promises one client replaced, to the server too). With --protect record or person one of those is "
    "replaced, and the default is untrusted-server."
)

Preset = Annotated[str, typer.Option(
    help="kernel (kernel critic, one round), refined (with --protect record: then rounds of DP-SGD at the sites, by "
    "files), ensemble (Algorithm 2: a critic at each client) or paper-federated (Algorithm 2 as published).",
    rich_help_panel=_RUN)]  # fmt: skip
Protect = Annotated[str, typer.Option(
    help="client (all of a client's records as one, for many clients), or each record or person of a few sites.",
    rich_help_panel=_GUARANTEE)]  # fmt: skip
TrustOption = Annotated[str | None, typer.Option(help=_TRUST, rich_help_panel=_GUARANTEE)]
Rounds = Annotated[int | None, typer.Option(
    help="Rounds of Algorithm 2 (default: 100), or of DP-SGD with preset refined (default: 10).",
    rich_help_panel=_RUN)]  # fmt: skip
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
ForceSpend = Annotated[bool, typer.Option("--force-spend",
    help="Go on although there are too few clients for any class to be told from the noise, which is refused "
    "otherwise.", rich_help_panel=_GUARANTEE)]  # fmt: skip
BudgetOption = Annotated[Path | None, typer.Option(
    help="Enter the release of a trusted aggregator into this budget file before anybody is asked; refused if all "
    "runs in it together would go beyond its budget (`gswgan budget`).", rich_help_panel=_GUARANTEE)]  # fmt: skip
Steps = Annotated[int | None, typer.Option(
    help="Training steps after the round; of DP-SGD with preset refined.", rich_help_panel=_RUN)]  # fmt: skip
Seed = Annotated[int, typer.Option(help="Fixes initial weights and latent codes; never the noise.",
                                   rich_help_panel=_RUN)]  # fmt: skip
Deadline = Annotated[float, typer.Option(
    help="Seconds until a round closes; who has not answered counts as zero.", rich_help_panel=_RUN)]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run",
    help="Print the plan and how many clients it takes. Nothing is released.", rich_help_panel=_RUN)]  # fmt: skip
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=_RUN)]
_FACTS = ("protect", "name", "classes", "class_names", "image_size", "channels", "min_sites")
_SOURCE = ("classes", "image_size", "min_records", "accuracy", "reference_classifier")
_PLANNED = (
    "preset", "trust", "epsilon", "delta", "steps", "rounds", "rate", "seed", "allow_large_delta", "force_spend",
    "deadline", "budget", "dry_run",
)  # fmt: skip
_SITE = (
    "client", "data", "state", "protect", "trust", "epsilon", "delta", "neighbours", "classes", "image_size", *READING,
    *PERSONS,
)  # fmt: skip
"""Options of a command that are handed on under their names."""


@app.command()
def simulate(
    data: Annotated[str, typer.Option(
        help="As for `gswgan train`; by person (mnist-writers), or with --clients.", rich_help_panel=_DATA)] = "digits",
    clients: Annotated[int | None, typer.Option(
        help="Spread the data over so many invented clients, which are no persons; with --protect record or person "
        "over so many sites.", rich_help_panel=_DATA)] = None,
    concentration: Annotated[float | None, typer.Option(
        help="How even their classes are: large for even, far below 1 for few classes each. Default: 1 for clients; "
        "sites get records in turn, and with this option by class, so that their sizes depend on the labels.",
        rich_help_panel=_DATA)] = None,
    classes: Annotated[int | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    image_size: Annotated[int | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    group_by: GroupBy = None,
    missing: Missing = None,
    min_records: Annotated[int | None, typer.Option(help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    accuracy: Annotated[str | None, typer.Option(
        metavar="FROM..TO", help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    reference_classifier: Annotated[Path | None, typer.Option(
        help="As for `gswgan train`.", rich_help_panel=_DATA)] = None,
    preset: Preset = "kernel",
    protect: Protect = "client",
    trust: TrustOption = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    allow_large_delta: LargeDelta = False,
    force_spend: ForceSpend = False,
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
    json: Json = False,
) -> None:  # fmt: skip
    """All clients on this machine: `gswgan federate simulate --data digits --clients 50 --out RUN`."""
    given = dict(locals())
    from gswgan.cli.federated_run import hold_and_train, spread_of, start_simulation
    from gswgan.data.sources import NAMES
    from gswgan.run.folder import RunFolder

    if resume is not None:
        if budget is not None:
            raise PlanError("options", "--budget", "nothing of the kind with --resume", "Leave it out.")
        hold_and_train(RunFolder(resume), device, json=json)
        return
    where = {name: _absolute(given[name]) for name in _SOURCE} | reading_of(given)
    where["spec"] = data if data in NAMES else str(Path(data).absolute())
    start_simulation(where, spread_of(given), {name: given[name] for name in _PLANNED}, out, device, json=json)


@app.command()
def plan(
    out: Annotated[Path, typer.Option(help="The run folder to make.", rich_help_panel=_RUN)],
    clients: Annotated[Path, typer.Option(
        help="A text file with the id of every client that may answer, one per line. With --protect record a line is "
        "`site,records`, with person `site,records,persons`: public, and confirmed by every site.",
        rich_help_panel=_DATA)],
    image_size: Annotated[int, typer.Option(help="Side of the images.", rich_help_panel=_DATA)],
    classes: Annotated[int | None, typer.Option(
        help="Number of classes, which are called 0, 1, ...", rich_help_panel=_DATA)] = None,
    class_names: Annotated[Path | None, typer.Option(
        help="Instead: a text file with the name of every class, one per line. Sites match theirs by name.",
        rich_help_panel=_DATA)] = None,
    min_sites: Annotated[int | None, typer.Option(
        help="With --protect record or person: go on when so many sites have answered. Default: all of them.",
        rich_help_panel=_DATA)] = None,
    channels: Annotated[int, typer.Option(help="1 (grey) or 3 (colour).", rich_help_panel=_DATA)] = 1,
    name: Annotated[str, typer.Option(help="What to call the data.", rich_help_panel=_DATA)] = "federated",
    preset: Preset = "kernel",
    protect: Protect = "client",
    trust: TrustOption = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    allow_large_delta: LargeDelta = False,
    force_spend: ForceSpend = False,
    steps: Steps = None,
    rounds: Rounds = None,
    rate: Rate = None,
    seed: Seed = 0,
    deadline: Deadline = 3600.0,
    budget: BudgetOption = None,
    device: Annotated[str, typer.Option(
        help="cpu, cuda or auto: what the networks are sized for.", rich_help_panel=_RUN)] = "cpu",
    unauthenticated: Annotated[bool, typer.Option("--unauthenticated",
        help="Nodes have no keys: a client's id may move to a new node when its old one has gone. For trials.",
        rich_help_panel=_RUN)] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:  # fmt: skip
    """A run folder for real clients, from public facts alone; the round is held by files, or by Flower."""
    given = dict(locals())
    from gswgan.cli.federated_run import make_run, public_facts

    ids, facts = public_facts(clients, {key: given[key] for key in _FACTS})
    made = make_run(out, ids, facts, {name: given[name] for name in (*_PLANNED, "device", "unauthenticated")})
    if json:
        print_json(made)


@app.command()
def answer(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan.json that the operator has sent.")],
    out: Annotated[Path, typer.Option(help="The answer to write: send it back to the operator.")],
    question: Annotated[Path | None, typer.Option(
        help="Preset refined: the file of a round that the operator has sent after the plan.")] = None,
    site: Annotated[Path | None, typer.Option(
        help="The site's configuration (TOML), with the names of the options below.")] = None,
    client: Annotated[str | None, typer.Option(help="This site's id, as on the operator's list.")] = None,
    data: Annotated[str | None, typer.Option(help="This site's records, as for `gswgan train`.")] = None,
    state: Annotated[Path | None, typer.Option(help="The folder where this site remembers its answers.")] = None,
    protect: Annotated[str | None, typer.Option(
        help="The unit of the cap: client (the whole site; the default), record or person.")] = None,
    trust: Annotated[str | None, typer.Option(
        help="What this site agrees to: trusted-aggregator (the operator sees its sums) or untrusted-server.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The cap: epsilon over all answers of this site.")] = None,
    delta: Annotated[float | None, typer.Option(help="The cap's delta.")] = None,
    neighbours: Annotated[str | None, typer.Option(
        help="The cap's relation: zeroed or replace-one. Default: the one that the trust model promises.")] = None,
    classes: Annotated[int | None, typer.Option(help="As for `gswgan train`.")] = None,
    image_size: Annotated[int | None, typer.Option(help="As for `gswgan train`.")] = None,
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    group_by: GroupBy = None,
    missing: Missing = None,
    json: Json = False,
) -> None:  # fmt: skip
    """At a site: answer the operator's plan. Shows who learns what, records the answer, writes it to a file."""
    given = dict(locals())
    from gswgan.cli.federated_run import answer_plan
    from gswgan.federated.site import check_site, read_file

    named = {name.replace("_", "-"): _absolute(given[name]) for name in _SITE if given[name] is not None}
    found = answer_plan(plan, out, check_site({**({} if site is None else read_file(site)), **named}), question)
    if json:
        print_json(found)


@app.command()
def node(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The site's configuration (TOML).")],
) -> None:
    """At a site: answer a server through Flower. Only code that is installed here runs, whatever the server sends."""
    if importlib.util.find_spec("flwr") is None:
        raise FederationError("flwr", None, "Flower", "Install it: pip install 'gswgan[federated]'.")
    from gswgan.federated.node import run_node
    from gswgan.federated.site import check_site, client_of, read_file

    config = check_site(read_file(site))
    client = client_of(config, look=True)
    console.print(f"client:    {client.name}, {client.trust}; its log is {client.home / 'log.jsonl'}")
    run_node(config, client, note=console.print)


@app.command()
def combine(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder made by `gswgan federate plan`.")],
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS", help="A folder with the sites' answers.")],
    close: Annotated[bool, typer.Option(
        "--close", help="End the round although sites are missing: they count as zero.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """At the operator: check the sites' answers, release their noisy sum, train the generator."""
    from gswgan.cli.federated_combine import combine_answers
    from gswgan.run.folder import RunFolder

    combine_answers(RunFolder(run), answers, close=close, device=device, json=json)


@app.command(name="app")
def app_folder() -> None:
    """Print the folder of the Flower app, for `flwr run`."""
    print(Path(str(importlib.util.find_spec("gswgan.federated").origin)).parent / "app")  # type: ignore[union-attr]


def _absolute(value: object) -> object:
    """A path as it is remembered."""
    return str(value.absolute()) if isinstance(value, Path) else value
