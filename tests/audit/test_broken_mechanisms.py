"""Every known way to break the barrier is refuted by the audit, and the same attack does not refute the real one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

import gswgan.privacy.mechanism as barrier
from gswgan.audit.bounds import Family, GaussianFamily, LossFamily, lower_bounds
from gswgan.audit.step_law import StepLaw
from gswgan.audit.wiring import made_facts, restated, seed_of
from gswgan.audit.worst_case import (
    exact_sums,
    kernel_pairs,
    kernel_release,
    kernel_scores,
    observe_steps,
    public_features,
)
from gswgan.critics.kernel.embedding import embed
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.methods import make_draft, make_plan
from gswgan.plan import context as wiring
from gswgan.plan.facts import Facts
from gswgan.plan.make import guarantee
from gswgan.plan.plan import Plan, PrivacySettings
from gswgan.privacy import Accountant, GaussianMechanism, Ledger, Repeated, Sampled, Streams
from gswgan.privacy.events import Composed, Gaussian
from gswgan.privacy.mechanism import GRID_BITS, Answer, Block

DELTA = 1e-5
FACTS = Facts(data="any", records=60_000, persons=None, classes=10, class_names=tuple("0123456789"), labelled=True,
              image_size=28, channels=1)  # fmt: skip
KERNEL = PrivacySettings(delta=DELTA, noise_std=1.001, clip_norm=1.0, counts=True)  # epsilon 10
RUN = PrivacySettings(
    delta=DELTA, noise_std=6.0, clip_norm=1.0, rows=8, releases=4, sampling="poisson", rate=0.5, critics=4
)
"""A whole run of the ensemble that is short enough to be audited step by real step."""


def stated_for(privacy: PrivacySettings) -> float:
    return guarantee(privacy.total(), delta=privacy.delta).epsilon


def shown(first: np.ndarray, second: np.ndarray, family: Family) -> float:
    """The larger bound, at 95 % confidence for both."""
    free, own = lower_bounds(first, second, delta=DELTA, family=family, error=0.025)
    assert own is not None
    return max(free.epsilon, own.epsilon)


def kernel_plan() -> Plan:
    """A run of the kernel critic with these settings; the audit lays its own facts over it."""
    plan = make_plan(made_facts(100, classes=2))
    return dataclasses.replace(plan, privacy=KERNEL)


def run_plan(seed: int) -> Plan:
    """A run of the ensemble with these settings: a record for each of four small critics."""
    plan = make_plan(made_facts(4), preset="ensemble-alone", critics=4, steps=RUN.releases)
    return restated(
        plan, seed=seed, privacy=RUN, critic=dataclasses.replace(plan.critic, width=2),
        training=dataclasses.replace(plan.training, batch_size=RUN.rows),
    )  # fmt: skip


def kernel_bound(*, features=None, pair: int = 0, trials: int = 12_000) -> float:
    pairs = kernel_pairs(features or public_features())
    scores = [kernel_scores(kernel_plan(), pairs[pair], world, trials, features=features) for world in (1, 2)]
    return shown(*scores, GaussianFamily(mu=2 / KERNEL.noise_std, delta=DELTA))


def run_bound(*, trials: int = 500) -> float:
    law, steps = StepLaw.of(RUN.event), trials * RUN.releases
    scores = [
        law.log_ratio(observe_steps(run_plan(seed_of("run", world)), world, steps).statistics[0].reshape(trials, -1))
        for world in (1, 2)
    ]
    return shown(*scores, LossFamily(RUN.total(), DELTA))


@pytest.fixture
def plant(monkeypatch):
    """Runs are wired with another mechanism."""
    return lambda cls: monkeypatch.setattr(wiring, "GaussianMechanism", cls)


class HalfTheNoise(GaussianMechanism):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.noise_std /= 2


class Twice(GaussianMechanism):
    """Answers again with fresh noise, and records it once: the observer takes the mean."""

    def answer(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Answer:
        blocks = list(blocks)
        once = super().answer(name, blocks, slots=slots, width=width)
        total = self._sum(blocks, slots, width)
        scale = self.noise_std / self.contribution.clip_norm * 2.0**GRID_BITS
        noise = self._streams.rounded_gaussian(total.shape, scale, "noise", name, "the second time")
        again = (total + noise) * (self.contribution.clip_norm * 2.0**-GRID_BITS)
        counts = None if once.counts is None else (once.counts + again[:, width]) / 2
        return Answer(sums=(once.sums + again[:, :width]) / 2, counts=counts)


class NoCoins(GaussianMechanism):
    """Asks everybody in every step."""

    def participants(self, name: str, count: int) -> np.ndarray:
        return np.arange(count)


class ExactCounts(GaussianMechanism):
    def answer(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Answer:
        blocks = list(blocks)
        exact = self._sum(blocks, slots, width)[:, width] * 2.0**-GRID_BITS
        return Answer(sums=super().answer(name, blocks, slots=slots, width=width).sums, counts=exact)


class Float32Noise(GaussianMechanism):
    """torch's normal on the CPU: 24 random bits a number, |z| <= 5.77, added in float32."""

    def answer(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Answer:
        exact = super()._sum(blocks, slots, width) * (self.contribution.clip_norm * 2.0**-GRID_BITS)
        source = torch.Generator().manual_seed(self._streams.integer("torch", name))
        noisy = torch.from_numpy(exact).to(torch.float32)
        noisy[:, :width] += self.noise_std * torch.randn(slots, width, generator=source)
        noisy[:, width] += self.noise_std * torch.randn(slots, generator=source)
        self.ledger.record(name, self.event, "")
        return Answer(sums=noisy[:, :width].double().numpy(), counts=noisy[:, width].double().numpy())


class NormThree:
    """A planted feature map that is not what it says: every row has norm 3."""

    def __init__(self) -> None:
        self._features = public_features()
        self.width, self.frequencies = self._features.width, self._features.frequencies
        self.encoder = self._features.encoder

    def __call__(self, images: Tensor) -> Tensor:
        return 3 * self._features(images)


def without_clip(rows: Tensor, clip_norm: float) -> Tensor:
    return (rows.to(torch.float64) / clip_norm * 2.0**GRID_BITS).trunc().to(torch.int64)


def test_the_real_kernel_release_is_not_refuted() -> None:
    stated = stated_for(KERNEL)
    for pair in (0, 1):
        assert stated / 1.5 < kernel_bound(pair=pair) < stated


def test_the_real_ensemble_is_not_refuted() -> None:
    stated = stated_for(RUN)
    assert stated / 2 < run_bound() < stated


def test_no_clip_in_the_kernel(monkeypatch) -> None:
    stated = stated_for(KERNEL)
    planted = NormThree()
    assert kernel_bound(features=planted, pair=1, trials=6000) < stated  # clipped: the planted map is harmless
    monkeypatch.setattr(barrier, "clip_to_grid", without_clip)
    assert kernel_bound(features=planted, pair=1, trials=6000) > stated
    assert kernel_bound(features=planted, pair=0, trials=6000) > stated


def test_no_clip_in_the_ensemble(monkeypatch) -> None:
    monkeypatch.setattr(barrier, "clip_to_grid", without_clip)
    assert run_bound(trials=300) > stated_for(RUN)


def test_half_the_noise(plant) -> None:
    plant(HalfTheNoise)
    assert kernel_bound() > stated_for(KERNEL)
    assert run_bound() > stated_for(RUN)


def test_the_same_noise_for_all_samples(monkeypatch) -> None:
    draw = Streams.rounded_gaussian

    def shared(self, shape, scale, *name):
        return np.broadcast_to(draw(self, (1, *shape[1:]), scale, *name), shape)

    monkeypatch.setattr(Streams, "rounded_gaussian", shared)
    assert run_bound(trials=300) > stated_for(RUN)
    assert kernel_bound(trials=6000) > stated_for(KERNEL)


def test_the_same_noise_for_all_pixels(monkeypatch) -> None:
    draw = Streams.rounded_gaussian

    def shared(self, shape, scale, *name):
        return np.broadcast_to(draw(self, (*shape[:-1], 1), scale, *name), shape)

    monkeypatch.setattr(Streams, "rounded_gaussian", shared)
    assert run_bound(trials=300) > stated_for(RUN)


def test_amplification_counted_for_each_sample() -> None:
    """The paper's own accounting, refuted on a tenth of its steps, and the same rule for the Poisson ensemble."""
    paper = make_draft(FACTS, preset="paper").privacy
    law, steps = StepLaw.of(paper.event), 2000
    scores = [law.scores(12_000, steps, world, seed=1) for world in (1, 2)]
    assert 9.993 < shown(*scores, LossFamily(paper.total(steps), DELTA)) < stated_for(paper)

    rare = dataclasses.replace(RUN, rate=0.01, rows=64, releases=200, noise_std=2.0)
    sample = Sampled(rate=rare.rate, event=Gaussian(noise_std=rare.noise_std, sensitivity=2 * rare.clip_norm))
    claimed = Accountant().epsilon(Repeated(event=sample, times=rare.releases * rare.rows), DELTA)
    scores = [StepLaw.of(rare.event).scores(6000, rare.releases, world, seed=1) for world in (1, 2)]
    assert claimed < shown(*scores, LossFamily(rare.total(), DELTA)) < stated_for(rare)


def test_released_twice_but_recorded_once(plant) -> None:
    plant(Twice)
    assert kernel_bound() > stated_for(KERNEL)


def test_class_counts_without_noise(plant) -> None:
    plant(ExactCounts)
    assert kernel_bound() > stated_for(KERNEL)


def test_everybody_takes_part_where_coins_are_accounted_for(plant) -> None:
    plant(NoCoins)
    assert run_bound() > stated_for(RUN)


def holes(world: int, trials: int) -> np.ndarray:
    """How many impossible values of float32 noise a release shows if the data were that of the second world.

    torch draws normals in pairs with a radius of sqrt(-2 ln(k 2^-24)), k = 1 .. 2^24. In the tail these circles are
    far apart, and beyond the first there is nothing: only the right exact sum makes every k a whole number.
    """
    features = RandomFeatures(KernelSettings(features=4096, length_scales=(0.5,)), 1, 8, torch.device("cpu"))
    pair = kernel_pairs(features)[0]
    if_second = exact_sums(pair.data(2, 1), features)[:, :-1]
    scores = []
    for number in range(trials // 50):
        seed = seed_of("holes", world, number)
        released = kernel_release(kernel_plan(), pair.data(world, 50), seed=seed, features=features)
        z = ((released.sums.view(50, *if_second.shape) - if_second) / KERNEL.noise_std).view(50, -1, 2, 8)
        k = 2.0**24 * torch.exp(-z.square().sum(dim=2) / 2)
        checkable = k < 20_000
        whole = ((k - k.round()).abs() < 0.2) & (k > 0.8)
        scores.append((checkable & ~whole).flatten(1).sum(dim=1).numpy())
    return np.concatenate(scores).astype(np.float64)


def test_float32_noise_whose_tail_is_cut(plant) -> None:
    stated = stated_for(KERNEL)
    family = GaussianFamily(mu=2 / KERNEL.noise_std, delta=DELTA)
    real = [holes(world, 600) for world in (1, 2)]
    assert shown(*real, family) < stated
    plant(Float32Noise)
    broken = [holes(world, 600) for world in (1, 2)]
    assert shown(*broken, family) > stated


def test_one_noise_key_for_two_budgets(tmp_path, monkeypatch) -> None:
    """One key for two plans: where noise goes by the name alone, the weighted difference of the releases has none."""
    louder = dataclasses.replace(KERNEL, noise_std=3 * KERNEL.noise_std)
    stated = Accountant().epsilon(Composed(events=(KERNEL.event, louder.event)), DELTA)
    features = public_features()
    pair = kernel_pairs(features)[0]
    direction = exact_sums(pair.data(1, 1), features) - exact_sums(pair.data(2, 1), features)
    copies = 1200

    def scores(world: int) -> np.ndarray:
        seen = []
        for number, privacy in enumerate((KERNEL, louder)):
            ledger = Ledger(tmp_path / f"{world} {number}", observer="public", context="plan")
            mechanism = GaussianMechanism(
                contribution=privacy.contribution, event=privacy.event, ledger=ledger,
                streams=Streams(bytes([world]) * 32, "plan"),
            )  # fmt: skip
            seen.append(embed(pair.data(world, copies), features, mechanism).sums)
            ledger.path.unlink()
        exact = (3 * seen[0] - seen[1]) / 2
        return (exact.view(copies, -1) @ direction[:, :-1].flatten()).numpy()

    mu = (KERNEL.event.mu**2 + louder.event.mu**2) ** 0.5
    family = GaussianFamily(mu=mu, delta=DELTA)
    assert shown(scores(1), scores(2), family) < stated
    announce = barrier.announce
    monkeypatch.setattr(barrier, "announce", lambda *args: announce(*args) and "no fingerprint")
    assert shown(scores(1), scores(2), family) > stated
