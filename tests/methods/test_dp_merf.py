from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from conftest import MNIST, tiny_baseline, tiny_images
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.errors import PlanError
from gswgan.methods import make_plan, read_plan
from gswgan.methods.dp_merf import dp_merf_defaults, length_scale
from gswgan.methods.dp_merf_minibatch import RECORD, MinibatchCritic
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Gaussian, Sampled
from gswgan.privacy.ledger import read_ledger
from gswgan.report.page import single_page
from gswgan.report.release import read_release
from gswgan.run import loop
from gswgan.run.folder import RunFolder


def test_the_settings_are_those_of_its_authors() -> None:
    defaults = dp_merf_defaults(MNIST)
    assert defaults.critic.features == 10_000
    assert defaults.critic.length_scales[0] ** 2 == pytest.approx(105, rel=2e-3)
    assert (defaults.training.steps, defaults.training.batch_size, defaults.training.memory) == (600, 500, 0.0)
    assert (defaults.generator.latent, defaults.optimizer.learning_rate) == (5, 0.01)


def test_the_length_scale_does_not_come_from_the_data() -> None:
    """The authors' median heuristic looks at private data; ours is a function of the shape."""
    facts = Facts.of(tiny_images())
    assert length_scale(facts) == length_scale(dataclasses.replace(facts, records=10**6, data="other"))
    assert length_scale(MNIST) == 10.25


def test_its_guarantee_is_the_gaussian_mechanism_of_its_paper() -> None:
    """Noise of 2 sigma / n on the mean of n records: epsilon by the analytic formula of Balle and Wang (2018)."""
    plan = make_plan(MNIST, method="dp-merf", epsilon=1.0)
    sigma = plan.privacy.noise_std / 2
    assert plan.privacy.contribution.sensitivity("replace-one") == 2.0
    mu, epsilon = 1 / sigma, plan.guarantee.epsilon
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-2)
    assert delta <= 1.0001e-5
    wrong = norm.cdf(mu / 4 - 2 * epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 4 - 2 * epsilon / mu)
    assert wrong != pytest.approx(1e-5, rel=0.5)  # a sensitivity of 1 would be told apart
    assert plan.privacy.releases == 1


# --- preset paper: a minibatch a step


def sampled_delta(std: float, rate: float, times: int, epsilon: float) -> float:
    """A record of norm 1 replaced by its opposite, each there with probability `rate`: the loss on a grid, by FFT."""
    size, span = 2**20, 60.0
    x = np.linspace(-1 - 14 * std, 1 + 14 * std, 400_001)
    here, away, there = (norm.pdf(x, at, std) for at in (1.0, 0.0, -1.0))
    p, q = rate * here + (1 - rate) * away, rate * there + (1 - rate) * away
    width = 2 * span / size
    weights, _ = np.histogram(np.log(p / q), bins=size, range=(-span, span), weights=p * (x[1] - x[0]))
    spectrum = np.fft.rfft(np.fft.ifftshift(weights)) ** times
    total = np.fft.fftshift(np.fft.irfft(spectrum, size))
    loss = (np.arange(size) - size // 2 + 0.5) * width + (times - 1) * width / 2  # each loss is half a step above
    above = loss > epsilon
    return float(np.sum(total[above] * -np.expm1(epsilon - loss[above])))


def test_paper_has_the_figures_of_the_appendix_and_their_true_cost() -> None:
    plan = make_plan(MNIST, method="dp-merf", preset="paper")
    critic = plan.critic
    assert (critic.learning_batch, critic.releases, critic.rate(MNIST)) == (500, 600, 1 / 120)
    assert (critic.noise_scale, critic.noise_std) == pytest.approx((0.588, 1.176))
    assert (plan.training.steps, critic.features) == (600, 10_000)
    assert plan.guarantee.epsilon == pytest.approx(1.40, abs=0.005)
    assert (plan.guarantee.neighbours, plan.guarantee.sampling) == ("replace-one", "poisson")
    assert sampled_delta(1.176, 1 / 120, 600, plan.guarantee.epsilon) == pytest.approx(1e-5, rel=0.03)
    assert sampled_delta(0.588, 1 / 120, 600, plan.guarantee.epsilon) > 1e-3  # the factor 2 forgotten
    assert plan.claimed.epsilon == pytest.approx(10.02, abs=0.005)
    assert "Wang et al. 2019" in plan.claimed.accounting
    assert plan.curve[-1] == (600, plan.guarantee.epsilon)
    assert read_plan(plan.to_json()) == plan
    with pytest.raises(PlanError, match="noise is fixed"):
        make_plan(MNIST, method="dp-merf", preset="paper", epsilon=10)
    with pytest.raises(PlanError, match="persons"):
        make_plan(dataclasses.replace(MNIST, persons=500), method="dp-merf", preset="paper", steps=2)
    with pytest.raises(PlanError, match="steps"):
        dataclasses.replace(plan, training=dataclasses.replace(plan.training, steps=599))


@pytest.fixture
def paper(tmp_path: Path) -> tuple[RunFolder, Plan]:
    plan = tiny_baseline(tiny_images(2000), "dp-merf", preset="paper", insecure_reproducible=True)
    return RunFolder.create(tmp_path / "run", plan), plan


def test_each_step_releases_a_minibatch_and_a_killed_run_goes_on(paper: tuple[RunFolder, Plan], tmp_path: Path) -> None:
    folder, plan = paper
    data = tiny_images(2000)
    other = RunFolder.create(tmp_path / "killed", plan)

    def die(done: int) -> None:
        if done == 2:
            raise MemoryError

    assert loop.run(folder, data, device=torch.device("cpu"))
    with contextlib.suppress(MemoryError):
        loop.run(other, data, device=torch.device("cpu"), progress=die)
    assert loop.run(other, data, device=torch.device("cpu"))
    assert other.generator.read_bytes() == folder.generator.read_bytes()
    _, entries, _ = read_ledger(folder.ledger)
    event = Sampled(rate=0.25, event=Gaussian(noise_std=1.176, sensitivity=2.0))
    assert [entry.event for entry in entries] == [event] * 4
    html = single_page(read_release(folder.root)).html
    assert "is more than it costs" in html
    assert "does not hold" not in html


def test_a_batch_is_drawn_by_coins_and_its_target_is_unbiased(mechanism_for) -> None:
    data = tiny_images(3000)
    features = RandomFeatures(KernelSettings(features=16, length_scales=(3.0,)), 1, 8, torch.device("cpu"))
    event = Sampled(rate=0.2, event=Gaussian(noise_std=1e-6, sensitivity=2.0))
    critic = MinibatchCritic(features, mechanism_for(RECORD, event=event), classes=3)
    critic.prepare(data)
    rows = features(torch.from_numpy(data.images).float() / 255)
    means = torch.stack([rows[torch.from_numpy(data.labels == label)].mean(dim=0) for label in range(3)])
    found, sizes = [], []
    for step in range(40):
        critic.learn(step, None)
        found.append(critic._targets.transpose(0, 1).flatten(1))
        sizes.append(critic._participants)
    assert len(set(sizes)) > 20  # a batch has no fixed size
    assert np.mean(sizes) == pytest.approx(600, abs=20)
    assert np.std(sizes) == pytest.approx(math.sqrt(3000 * 0.2 * 0.8), rel=0.4)
    assert torch.allclose(torch.stack(found).mean(dim=0), means, atol=0.02)


def test_a_record_is_the_same_row_whoever_else_takes_part(mechanism_for) -> None:
    data = tiny_images(300)
    features = RandomFeatures(KernelSettings(features=64, length_scales=(3.0,)), 1, 8, torch.device("cpu"))
    event = Sampled(rate=0.2, event=Gaussian(noise_std=1.0, sensitivity=2.0))
    critic = MinibatchCritic(features, mechanism_for(RECORD, event=event), classes=3)
    critic.prepare(data)
    seen: dict[int, torch.Tensor] = {}
    rng = np.random.default_rng(0)
    for members in ([7], [7, 9], *(np.flatnonzero(rng.random(300) < share) for share in (0.1, 0.2, 0.5, 1.0))):
        rows = torch.cat([rows for rows, _ in critic._blocks(np.array(members))])
        assert len(rows) == len(members)
        for member, row in zip(members, rows):
            assert torch.equal(row, seen.setdefault(int(member), row))
    assert sum(len(rows) for rows, _ in critic._blocks(np.arange(300))) == 300
    assert list(critic._blocks(np.array([], dtype=np.int64))) == []
