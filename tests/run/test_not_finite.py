"""A training that stops being finite: it stops, publishes nothing, and keeps the last state that was good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import copied, tiny_images, tiny_plan
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.errors import RunError
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import read_ledger
from gswgan.run import checkpoint, loop
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import RunFolder

CPU, DATA = torch.device("cpu"), tiny_images(48)
CASES = {"kernel": (KernelCritic, 120, 61), "ensemble": (Ensemble, 8, 5)}  # steps, and where one goes wrong


def plan_of(preset: str) -> Plan:
    return tiny_plan(DATA, preset=preset, steps=CASES[preset][1], insecure_reproducible=True)


@pytest.mark.parametrize("saves", [True, False], ids=["saved every step", "never saved"])
@pytest.mark.parametrize("preset", list(CASES))
def test_nan_stops_the_run_with_the_last_good_state(tmp_path: Path, monkeypatch, preset: str, saves: bool) -> None:
    critic, _, bad = CASES[preset]
    plan = plan_of(preset)
    straight = RunFolder.create(tmp_path / "straight", plan)
    assert loop.run(straight, DATA, device=CPU)
    if saves:
        monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        monkeypatch.setattr(checkpoint, "SHARE", 0.0)
    folder, answer, asked = RunFolder.create(tmp_path / "run", plan), critic.upstream_gradient, []

    def goes_wrong(self, fake, labels):
        asked.append(0)
        return answer(self, fake, labels) * (torch.nan if len(asked) == bad else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(critic, "upstream_gradient", goes_wrong)
        with pytest.raises(RunError, match=r"not numbers after step 6?[0-9]': expected .*finite") as told:
            loop.run(folder, DATA, device=CPU)
    good = bad - 1 if saves else 0
    assert f"The last good state, after step {good}, is kept" in str(told.value)
    assert len(asked) <= bad + 1  # noticed at once: every step that is saved or logged
    assert not folder.is_finished
    assert not folder.generator.exists()
    saved = Checkpoint(folder.checkpoint, plan.digest()).load()
    assert (saved[0] if saved else 0) == good
    if saved:
        assert all(value.isfinite().all() for value in saved[1]["generator"].values())
    assert loop.run(folder, DATA, device=CPU)  # with nothing wrong any more
    assert folder.generator.read_bytes() == straight.generator.read_bytes()
    assert read_ledger(folder.ledger)[1:] == read_ledger(straight.ledger)[1:]


def test_nan_in_the_last_step_is_not_published(tmp_path: Path, monkeypatch) -> None:
    critic, steps, _ = CASES["ensemble"]
    folder, answer, asked = RunFolder.create(tmp_path / "run", plan_of("ensemble")), critic.upstream_gradient, []
    monkeypatch.setattr(loop, "LOG_EVERY", 1000)  # checked at the end, if nowhere else

    def goes_wrong(self, fake, labels):
        asked.append(0)
        return answer(self, fake, labels) * (torch.nan if len(asked) == steps else 1.0)

    monkeypatch.setattr(critic, "upstream_gradient", goes_wrong)
    with pytest.raises(RunError, match=f"after step {steps}"):
        loop.run(folder, DATA, device=CPU)
    assert not folder.generator.exists()


def test_a_critic_that_is_not_finite_stops_nothing(tmp_path: Path, monkeypatch) -> None:
    """Its rows count as zero: a run that stopped for what one critic has would tell who is in it."""
    folder, prepare = RunFolder.create(tmp_path / "run", plan_of("ensemble")), Ensemble.prepare
    states = []

    def one_is_broken(self, data, *, resumed=False):
        prepare(self, data, resumed=resumed)
        for value in self.params.values():
            value[3] = torch.nan
        states.append(self)

    monkeypatch.setattr(Ensemble, "prepare", one_is_broken)
    assert loop.run(folder, DATA, device=CPU)
    state = copied(states[0].state())
    assert not state["params/conv1.weight"][3].isfinite().any()
    assert state["params/conv1.weight"][:3].isfinite().all()
