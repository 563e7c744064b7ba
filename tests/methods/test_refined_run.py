"""Preset `refined`: its plan and what it costs, a whole run with its ledger, stops in every stage, pack and verify."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import gswgan
from conftest import MNIST, tiny_images
from gswgan.critics.refined.critic import Refined
from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.errors import PlanError
from gswgan.generators import GeneratorSettings
from gswgan.generators.refined import RefinedGenerator
from gswgan.methods import make_plan, refined
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Composed, Gaussian, Repeated, Sampled
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GaussianMechanism
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")


def small(**changes) -> Plan:
    """A few steps of each stage on 96 images: 4 with the kernel, 3 of pre-training, 3 of DP-SGD."""
    plan = make_plan(Facts.of(tiny_images()), preset="refined", steps=3)
    critic = dataclasses.replace(
        plan.critic, steps=4, pretraining=3, pretraining_batch=16, samples=64, draws=2,
        kernel=dataclasses.replace(plan.critic.kernel, features=64),
        start=GeneratorSettings(architecture="mlp", width=16),
    )  # fmt: skip
    training = dataclasses.replace(plan.training, steps=10, batch_size=12)
    generator = dataclasses.replace(plan.generator, width=4)
    return dataclasses.replace(plan, critic=critic, training=training, generator=generator, curve=(), **changes)


def test_the_budget_is_divided_and_both_parts_are_paid() -> None:
    plan = make_plan(MNIST, preset="refined", epsilon=10, device="cuda")
    settings, privacy = plan.critic, plan.privacy
    assert isinstance(settings, RefinedSettings)
    first = Gaussian(noise_std=settings.noise_std, sensitivity=2.0)
    step = Sampled(rate=2048 / 60_000, event=Gaussian(noise_std=privacy.noise_std, sensitivity=2 * privacy.clip_norm))
    assert plan.total() == Composed(events=(first, Repeated(event=step, times=privacy.releases)))
    cost = {name: Accountant().epsilon(event, 1e-5) for name, event in
            {"both": plan.total(), "kernel": first, "rest": privacy.total()}.items()}  # fmt: skip
    assert 9.99 < cost["both"] <= 10
    assert cost["both"] == pytest.approx(plan.guarantee.epsilon)
    assert 4 < cost["kernel"] < 4.5
    assert cost["both"] > 1.1 * cost["rest"]  # forgetting the kernel's share would show


def test_an_invalid_label_does_not_raise_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """The constructor of data refuses it; the critic is the second line of defence."""
    data, plan = tiny_images(), small()
    wrong = dataclasses.replace(data)
    object.__setattr__(wrong, "labels", np.where(np.arange(data.n) % 2, data.classes, -1))
    folder = RunFolder.create(tmp_path / "run", plan)
    critic = loop.make_critic(plan, folder, wrong, CPU)
    assert isinstance(critic, Refined)
    critic.kernel.prepare = lambda *args, **options: None  # type: ignore[method-assign]  # it leaves them out
    critic.prepare(wrong)
    assert set(critic.records.labels.tolist()) == {0, data.classes - 1}


def test_nothing_more_is_paid_before_dp_sgd_begins() -> None:
    plan = small()
    assert [plan.total(done) for done in (1, 4, 7)] == [plan.critic.event(True)] * 3
    assert plan.total(8) == Composed(events=(plan.critic.event(True), plan.privacy.total(1)))


def test_a_number_of_critics_is_refused() -> None:
    with pytest.raises(PlanError, match="no number of critics with preset refined"):
        make_plan(MNIST, preset="refined", critics=10)


def test_a_plan_that_releases_more_than_is_accounted_for_is_refused() -> None:
    plan = small()
    with pytest.raises(PlanError, match="as accounted for"):
        dataclasses.replace(plan, training=dataclasses.replace(plan.training, steps=11))
    with pytest.raises(PlanError, match="as accounted for"):
        dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, releases=2))
    with pytest.raises(PlanError, match="drawn by coins"):
        dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, rows=2))


@pytest.mark.parametrize("width", [2, 6, 15])
def test_a_width_with_which_rows_depend_on_each_other_is_refused(width: int) -> None:
    """tests/critics/refined/test_record_gradients.py looks at the bits."""
    plan = small()
    with pytest.raises(PlanError, match=r"width.*multiple of 4"):
        dataclasses.replace(plan, generator=dataclasses.replace(plan.generator, width=width))


def test_a_run_is_recorded_line_by_line_packed_and_verified(tmp_path: Path) -> None:
    plan = small()
    folder = RunFolder.create(tmp_path / "run", plan)
    assert loop.run(folder, tiny_images(), device=CPU)
    _, entries, _ = read_ledger(folder.ledger)
    assert [entry.name for entry in entries] == ["embedding", "step 0", "step 1", "step 2"]
    assert [entry.event for entry in entries] == [plan.critic.event(True), *[plan.privacy.event] * 3]
    assert json.loads(folder.privacy.read_text())["epsilon"] == pytest.approx(plan.guarantee.epsilon)
    model = gswgan.load(folder.root, device="cpu")
    images, labels = model.sample(12, seed=1)
    assert images.shape == (12, 8, 8)
    assert sorted(set(labels)) == [0, 1, 2]
    pack(folder.root, tmp_path / "packed")
    assert not verify(tmp_path / "packed").findings


@pytest.mark.parametrize("stop", [2, 4, 5, 7, 8, 9])
def test_a_run_that_was_stopped_in_any_stage_goes_on_to_the_same_bytes(tmp_path: Path, stop: int) -> None:
    plan = small(insecure_reproducible=True)
    straight, stopped = (RunFolder.create(tmp_path / name, plan) for name in ("straight", "stopped"))
    assert loop.run(straight, tiny_images(), device=CPU)

    def interrupt(done: int) -> None:
        if done == stop:
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(stopped, tiny_images(), device=CPU, progress=interrupt)
    assert loop.run(stopped, tiny_images(), device=CPU)
    assert stopped.generator.read_bytes() == straight.generator.read_bytes()
    assert len(read_ledger(stopped.ledger)[1]) == len(read_ledger(straight.ledger)[1]) == 4


def test_the_mechanism_gets_one_row_for_each_record_and_the_coins_are_its_own(tmp_path: Path, monkeypatch) -> None:
    """What is clipped is a record's gradient over all its draws, not a draw's; who takes part, the mechanism says."""
    plan, seen = small(), {}
    real = GaussianMechanism.answer

    def release(self, name, blocks, *, slots, width):
        blocks = list(blocks)
        if name.startswith("step"):
            seen[name] = (self.participants(name, 96), torch.cat([rows for rows, _ in blocks]))
        return real(self, name, blocks, slots=slots, width=width)

    monkeypatch.setattr(GaussianMechanism, "answer", release)
    inputs = []
    own = Gradients.of_records

    def of_records(self, images, labels, records, seed):
        inputs.append((records.clone(), seed.clone()))
        return own(self, images, labels, records, seed)

    monkeypatch.setattr(Gradients, "of_records", of_records)
    folder = RunFolder.create(tmp_path / "run", plan)
    assert loop.run(folder, tiny_images(), device=CPU)
    assert list(seen) == ["step 0", "step 1", "step 2"]
    for members, rows in seen.values():
        assert rows.shape[:2] == (len(members), 1)
    assert len({tuple(members) for members, _ in seen.values()}) == 3  # fresh coins in each step
    assert len({int(seed) for _, seed in inputs}) == 3  # and fresh draws
    for (members, _), (records, _) in zip(seen.values(), inputs):
        assert np.array_equal(records[: len(members)], members)


def test_the_denoiser_learns_from_the_records(tmp_path: Path) -> None:
    """Without noise to speak of, DP-SGD brings it nearer to the data than its start was."""
    data = tiny_images(192)
    plan = make_plan(Facts.of(data), preset="refined", steps=30, epsilon=5000.0)
    critic = dataclasses.replace(
        plan.critic, steps=2, pretraining=10, pretraining_batch=16, samples=64,
        kernel=dataclasses.replace(plan.critic.kernel, features=64),
        start=GeneratorSettings(architecture="mlp", width=16),
    )  # fmt: skip
    training = dataclasses.replace(plan.training, steps=42, batch_size=12)
    optimizer = dataclasses.replace(plan.optimizer, learning_rate=1e-2)
    plan = dataclasses.replace(plan, critic=critic, training=training, optimizer=optimizer, curve=())
    folder = RunFolder.create(tmp_path / "run", plan)
    generator = loop.make_generator(plan, CPU)
    made = loop.make_critic(plan, folder, data, CPU)
    assert isinstance(made, Refined)
    assert isinstance(generator, RefinedGenerator)
    made.prepare(data)
    losses = {}

    def after(done: int) -> bool:
        if done in (12, 42):
            losses[done] = held_out_loss(generator)
        return False

    loop.train(plan, made, generator, after_step=after)
    assert losses[42] < 0.8 * losses[12]
    assert made.metrics()["stage"] == "DP-SGD"
    assert made.metrics()["norm_before"][0] > plan.privacy.clip_norm  # every record is clipped


def held_out_loss(generator: RefinedGenerator) -> float:
    from gswgan.generators.denoiser import loss_of_draws

    other, rng = tiny_images(48, seed=1), torch.Generator().manual_seed(0)
    images = torch.from_numpy(other.images).permute(0, 2, 3, 1).float() / 127.5 - 1
    noise, levels = torch.randn(images.shape, generator=rng), torch.full((48,), 0.5)
    with torch.no_grad():
        found = loss_of_draws(generator.denoised.denoiser, images, noise, levels, torch.from_numpy(other.labels))
    return float(found.mean())


def test_the_recipe_depends_on_public_facts_alone() -> None:
    assert refined.sizes(MNIST, "cuda") == refined.sizes(dataclasses.replace(MNIST, data="other"), "cuda")
    assert refined.sizes(dataclasses.replace(MNIST, image_size=8), "cpu").width < refined.sizes(MNIST, "cpu").width
