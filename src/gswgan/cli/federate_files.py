"""`gswgan federate answer` and `combine`, the kernel critic's round by files; and `node`, a site's own Flower node."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import console
from gswgan.cli.federate import show, tell
from gswgan.cli.running import limit_threads, progress_of
from gswgan.errors import FederationError

Option = typer.Option


def answer(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan.json that the operator has sent.")],
    out: Annotated[Path, Option(help="The answer to write: send it back to the operator.")],
    site: Annotated[Path | None, Option(
        help="The site's configuration (TOML), with the names of the options below.")] = None,
    client: Annotated[str | None, Option(help="This site's id, as on the operator's list.")] = None,
    data: Annotated[str | None, Option(help="This site's records, as for `gswgan train`.")] = None,
    state: Annotated[Path | None, Option(help="The folder where this site remembers its answers.")] = None,
    trust: Annotated[str | None, Option(
        help="What this site agrees to: trusted-aggregator (the operator sees its sums) or untrusted-server.")] = None,
    epsilon: Annotated[float | None, Option(help="The cap: epsilon over all answers of this site.")] = None,
    delta: Annotated[float | None, Option(help="The cap's delta.")] = None,
    neighbours: Annotated[str | None, Option(
        help="The cap's relation: zeroed or replace-one. Default: the one that the trust model promises.")] = None,
    classes: Annotated[int | None, Option(help="As for `gswgan train`.")] = None,
    image_size: Annotated[int | None, Option(help="As for `gswgan train`.")] = None,
) -> None:  # fmt: skip
    """At a site: answer the operator's plan. Shows who learns what, records the answer, writes it to a file."""
    from gswgan.federated.by_files import read_plan, who_learns_what, write_answer
    from gswgan.federated.site import check_site, client_of, read_file

    given: dict[str, Any] = {
        "client": client, "data": data, "state": None if state is None else str(state), "trust": trust,
        "epsilon": epsilon, "delta": delta, "neighbours": neighbours, "classes": classes, "image-size": image_size,
    }  # fmt: skip
    config = {} if site is None else read_file(site)
    config |= {name: value for name, value in given.items() if value is not None}
    asked = read_plan(plan)
    me = client_of(check_site(config), look=True)  # whoever starts this hears what is wrong with the records
    show(asked)
    for line in who_learns_what(asked, me):
        console.print(line)
    write_answer(out, me, asked)
    console.print(f"answer:    {out}: send it to the operator, who runs `gswgan federate combine`")


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


def combine(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder made by `gswgan federate plan`.")],
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS", help="A folder with the sites' answers.")],
    close: Annotated[bool, Option(
        "--close", help="End the round although sites are missing: they count as zero.")] = False,
    device: Annotated[str, Option(help="cpu, cuda or auto.")] = "auto",
) -> None:  # fmt: skip
    """At the operator: check the sites' answers, release their noisy sum, train the generator."""
    from gswgan.federated.by_files import take_answers
    from gswgan.federated.server import Round
    from gswgan.run.folder import RunFolder
    from gswgan.run.loop import run as train
    from gswgan.run.released import pick_device

    folder, where = RunFolder(run), pick_device(device)
    held = Round(folder, is_timed=False)
    with held.held():
        if not held.is_released:
            if not held.is_closed:
                for refused in take_answers(held, answers):
                    console.print(f"refused:   {refused}", markup=False)
            missing = sorted(held.roster - held.answered)
            console.print(f"answers:   {len(held.answered)} of {len(held.roster)}")
            if missing and not close and not held.is_closed:
                raise FederationError(
                    "answers", f"none of {', '.join(missing[:5])}" + ("..." if len(missing) > 5 else ""),
                    "one of every site", "Run it again when they are there, or pass --close to count them as zero.",
                )  # fmt: skip
            held.release()
    plan = held.plan
    limit_threads(plan.facts.image_size, where)
    if not folder.is_finished:
        with progress_of(plan) as move:
            if not train(folder, None, device=where, progress=move, note=console.print):
                console.print(f"stopped; continue with: gswgan federate combine {run} {answers}")
                raise typer.Exit(130)
    tell(folder)
