"""`torchrun --nproc-per-node W -m gswgan train ...`: rank 0 runs the command, the others hold critics or records."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gswgan.critics.ensemble.distributed import Ranks, current
from gswgan.errors import PlanError
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.privacy import Streams
from gswgan.run.folder import RunFolder


def run_in_ranks(app: Callable[[], object]) -> None:
    """The command at rank 0; elsewhere critics, until it is over. Does not return."""
    ranks = current()
    assert ranks is not None
    try:
        if ranks.rank:
            hold(ranks)
            sys.exit(0)
        app()
    finally:
        ranks.end()


def ranks_of(plan: Plan, where: dict[str, Any] | None) -> Ranks | None:
    """The ranks that the plan's critics are spread over, if torchrun has started us; all will read this data."""
    ranks = current()
    if ranks is not None and where is not None:
        ranks.where = where
    if ranks is not None and not plan.critic.can_spread:
        raise PlanError(
            "ranks", ranks.world, "one process: only an ensemble of critics, or the records of refined, can be spread",
            "Leave torchrun out, or use --preset ensemble or refined.",
        )  # fmt: skip
    most = plan.sums.critics or plan.facts.persons or plan.facts.records
    if ranks is not None and most < ranks.world:
        raise PlanError("ranks", ranks.world, f"at most {most}, the critics, records or persons", "Start fewer.")
    return ranks


def hold(ranks: Ranks) -> None:
    """A rank other than 0: some of the critics, or of the records."""
    from gswgan.evaluation.real_data import load_data

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when it is over
    order = ranks.receive()
    if order["do"] == "end":
        return
    folder, device = RunFolder(Path(order["root"])), pick_device(order["device"])
    plan = folder.plan()
    data = load_data(**order["where"])
    secret = folder.secret(plan)
    folder.bind_data(data, secret)
    context = folder.context(
        plan, public=Streams.public(plan.seed), secret=secret, device=device, note=lambda text: None,
        stopped=lambda: False, ranks=ranks,
    )  # fmt: skip
    plan.critic.hold(plan, context, data)
