"""An ensemble that the kernel critic starts: its plan, its cost, a whole run, and a run that was stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from conftest import MNIST, tiny_images
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel_then_ensemble import KernelThenEnsembleSettings
from gswgan.errors import PlanError
from gswgan.methods import kernel_then_ensemble, make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Composed, Gaussian, Repeated, Sampled
from gswgan.privacy.ledger import read_ledger
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")


def small(monkeypatch: pytest.MonkeyPatch, **changes) -> Plan:
    """Images of 8x8 with a start, which they have no need of: a few steps of each critic."""
    monkeypatch.setattr(kernel_then_ensemble, "is_started", lambda facts: True)
    monkeypatch.setattr(kernel_then_ensemble, "rows_of_a_step", lambda facts: 6)
    monkeypatch.setattr(kernel_then_ensemble, "CATCH_UP", 1)
    plan = make_plan(Facts.of(tiny_images()), preset="ensemble", critics=6, steps=3)
    critics = EnsembleSettings(width=4, updates=2, learning_batch=4)
    kernel = dataclasses.replace(plan.critic.kernel, features=64)
    critic = dataclasses.replace(plan.critic, steps=4, kernel=kernel, ensemble=critics)
    generator = dataclasses.replace(plan.generator, width=16)
    training = dataclasses.replace(plan.training, steps=7)
    return dataclasses.replace(plan, critic=critic, generator=generator, training=training, curve=(), **changes)


def test_the_budget_is_divided_and_both_parts_are_paid() -> None:
    plan = make_plan(MNIST, preset="ensemble", epsilon=10, device="cuda")
    settings, privacy = plan.critic, plan.privacy
    assert isinstance(settings, KernelThenEnsembleSettings)
    first = Gaussian(noise_std=settings.noise_std, sensitivity=2.0)
    assert isinstance(privacy.event, Sampled)
    assert plan.total() == Composed(events=(first, Repeated(event=privacy.event, times=privacy.releases)))
    cost = {name: Accountant().epsilon(event, 1e-5) for name, event in
            {"both": plan.total(), "kernel": first, "ensemble": privacy.total()}.items()}  # fmt: skip
    assert 9.99 < cost["both"] <= 10
    assert cost["both"] == pytest.approx(plan.guarantee.epsilon)
    assert cost["kernel"] < 0.5 * cost["both"]
    assert cost["both"] > 1.1 * cost["ensemble"]  # forgetting the start would show
    assert kernel_then_ensemble.share(settings, privacy) == pytest.approx(kernel_then_ensemble.SHARE)
    mu = 0.1 * privacy.releases**0.5 * privacy.event.event.mu  # of the ensemble, by the central limit theorem
    assert first.mu**2 / (first.mu**2 + mu**2) == pytest.approx(kernel_then_ensemble.SHARE, rel=1e-6)


def test_epsilon_is_that_of_the_kernel_until_the_ensemble_begins() -> None:
    plan = make_plan(MNIST, preset="ensemble", epsilon=10, device="cuda")
    start = plan.critic.steps
    assert plan.total(start) == plan.critic.event(True)
    assert plan.total(start + 1) == Composed(events=(plan.critic.event(True), plan.privacy.total(1)))
    assert plan.epsilon_after(start // 2) == plan.epsilon_after(start) < 4 < plan.epsilon_after(start + 1)
    assert [done - start for done, _ in plan.curve] == [0, 63, 125, 188, 250, 313, 375, 438, 500]


@pytest.mark.parametrize(
    "change", [{"persons": 539}, {"image_size": 8}, {"channels": 3}, {"image_size": 64}], ids=lambda c: next(iter(c))
)
def test_where_it_does_not_serve_the_ensemble_is_alone(change: dict) -> None:
    plan = make_plan(dataclasses.replace(MNIST, **change), preset="ensemble", epsilon=10)
    assert isinstance(plan.critic, EnsembleSettings)
    assert isinstance(make_plan(MNIST, preset="ensemble-alone", epsilon=10).critic, EnsembleSettings)


@pytest.mark.parametrize("field", ["steps", "batch_size"])
def test_a_plan_that_releases_more_than_is_accounted_for_is_refused(monkeypatch, field: str) -> None:
    plan = small(monkeypatch)
    training = dataclasses.replace(plan.training, **{field: getattr(plan.training, field) + 1})
    with pytest.raises(PlanError, match="as accounted for"):
        dataclasses.replace(plan, training=training)


def test_a_run_makes_one_release_and_then_one_a_step(monkeypatch, tmp_path: Path) -> None:
    plan = small(monkeypatch)
    folder = RunFolder.create(tmp_path / "run", plan)
    assert loop.run(folder, tiny_images(), device=CPU)
    _, entries, _ = read_ledger(folder.ledger)
    assert [entry.name for entry in entries] == ["embedding", "step 0", "step 1", "step 2"]
    statement = json.loads(folder.privacy.read_text())
    assert statement["epsilon"] == pytest.approx(plan.guarantee.epsilon)


@pytest.mark.parametrize("stop", [2, 4, 5])
def test_a_stopped_run_goes_on_to_the_same_generator(monkeypatch, tmp_path: Path, stop: int) -> None:
    plan = small(monkeypatch, insecure_reproducible=True)
    straight, stopped = (RunFolder.create(tmp_path / name, plan) for name in ("straight", "stopped"))
    assert loop.run(straight, tiny_images(), device=CPU)

    def interrupt(done: int) -> None:
        if done == stop:
            import signal

            signal.raise_signal(signal.SIGINT)

    assert not loop.run(stopped, tiny_images(), device=CPU, progress=interrupt)
    assert loop.run(stopped, tiny_images(), device=CPU)
    assert stopped.generator.read_bytes() == straight.generator.read_bytes()
    assert len(read_ledger(stopped.ledger)[1]) == len(read_ledger(straight.ledger)[1]) == 4
