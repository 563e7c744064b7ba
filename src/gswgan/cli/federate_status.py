"""`gswgan federate inspect` and `status`: what a plan asks of a site, what was spent, and who has answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import Json, console, print_json, table


def inspect(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan.json that the operator has sent.")],
    site: Annotated[Path | None, typer.Option(
        help="The site's configuration (TOML): to see also what the site has spent, and whether its cap allows it.")
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """At a site, before it answers: who sees what at which epsilon, and what leaves the site. Nothing is recorded.

    The cap that a site consents to is `epsilon` and `delta` in its configuration, which the operator cannot change.
    """
    from gswgan.cli.federated_run import inspect_plan

    found = inspect_plan(plan, site)
    if json:
        print_json(found)


def status(
    state: Annotated[Path, typer.Argument(
        metavar="STATE|RUN", help="Where a client keeps its state, or a run folder: a server's or a simulated one.")],
    json: Json = False,
) -> None:  # fmt: skip
    """What each client has spent against its cap, from its own ledger; of a server's run, who has answered."""
    from gswgan.cli.federated_run import spent_content
    from gswgan.federated.answers import log_of
    from gswgan.federated.memory import memories
    from gswgan.run.folder import RunFolder

    inside = state / "private" / "clients"
    run = RunFolder(state)
    if run.rounds.exists() and not inside.is_dir():
        answers = _answers(run, log_of(run))
        if json:
            print_json(answers)
        return
    found, rows = memories(inside if inside.is_dir() else state), []
    for memory in found:
        how = {"zeroed": "zeroed", "replace-one": "replaced"}[memory.cap.neighbours]
        at = f"delta {memory.cap.delta:g}, one {memory.protect} {how}"
        rows.append((memory.client, str(len(memory.events)), f"{memory.spent:.4g}", f"{memory.cap.epsilon:.4g}", at))
    console.print(table(("client", "answers", "epsilon spent", "cap", "at"), rows))
    console.print("An answer is counted before it is sent, so also where it never arrived.")
    if json:
        print_json({"clients": [spent_content(memory) for memory in found]})


def _answers(run: Any, log: Path) -> dict[str, Any]:
    """Who has answered in the server's run folder; printed, and as plain data."""
    from gswgan.federated.answers import log_rows
    from gswgan.federated.server import read_settings

    rows = log_rows(log)
    found = []
    for client in read_settings(run)["clients"]:
        mine = [row for row in rows if row["client"] == client]
        taken = [row for row in mine if "digest" in row]
        refused = [row["refused"] for row in mine if "refused" in row]
        last = refused[-1] if refused else ""
        found.append({"client": client, "answers": len(taken), "bytes": sum(row["up"] for row in taken),
                      "refused": len(refused), "last_refusal": last})  # fmt: skip
    cells = [(one["client"], "yes" if one["answers"] else "no", f"{one['bytes']:,}", one["last_refusal"][:80])
             for one in found]  # fmt: skip
    released = run.embedding.exists()
    console.print(table(("client", "answered", "bytes", "last refusal"), cells))
    console.print("released:  " + ("yes" if released else "no"))
    return {"answers": found, "released": released}
