"""Rounds over sites that are interrupted go on to the same bytes, and no line of a ledger comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from over_sites import STEPS, Federated, planned, sites

from gswgan.critics.refined.sites import rounds_of
from gswgan.run.checkpoint import Checkpoint
from silos_refined import run_rounds


class InterruptedTurnError(Exception):
    pass


@pytest.mark.parametrize("local", [2, STEPS])
def test_rounds_that_were_interrupted_go_on_to_the_same_bytes(tmp_path: Path, monkeypatch, local: int) -> None:
    parts = sites(2)
    plan, rounds = planned(parts), rounds_of(STEPS, local)
    straight = Federated(plan, parts, tmp_path / "straight")
    for steps in rounds:
        straight.round(steps)
    monkeypatch.setattr(Checkpoint, "is_due", lambda self: True)
    for turn in range(2 * len(rounds)):
        federated, left = Federated(plan, parts, tmp_path / "stopped"), [1]
        for site in federated.sites.values():
            own = site.records.answer

            def answer(step, batches, own=own, left=left):
                if left[0] == 0 and step in {steps.stop - 1 for steps in rounds}:
                    raise InterruptedTurnError  # in the last step of a turn, after the turn before was kept
                left[0] -= step in {steps.stop - 1 for steps in rounds}
                return own(step, batches)

            monkeypatch.setattr(site.records, "answer", answer)
        saved = Checkpoint(tmp_path / "rounds.safetensors", plan.digest())
        if turn + 1 < 2 * len(rounds):
            with pytest.raises(InterruptedTurnError):
                run_rounds(federated.sites, federated.server, rounds, saved)
        else:
            run_rounds(federated.sites, federated.server, rounds, saved)
    assert torch.equal(federated.server.weights, straight.server.weights)
    assert torch.equal(federated.server.averaged, straight.server.averaged)
    for ledger in federated.ledgers.values():
        assert [(entry.name, entry.attempt) for entry in ledger.entries] == [(f"step {n}", 0) for n in range(STEPS)]
