from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

import gswgan
from conftest import MNIST, changed_in_one_record, tiny_baseline, tiny_images
from gswgan.critics.autoencoder import Autoencoder
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.embedding import embed
from gswgan.critics.kernel.features import KernelSettings
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.generators.decoded import CODE, on_sphere
from gswgan.generators.generator import Generator
from gswgan.methods import dp_merf_ae, make_plan, read_plan
from gswgan.methods.dp_merf_ae import CodeFeatures, DPMerfAE
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Contribution, GaussianMechanism
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import Answer
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")


# --- what it costs


def composed_delta(parts: list[tuple[float, float, int]], mu: float, epsilon: float) -> float:
    """Records by coins at (multiplier, rate, times), and one Gaussian of this mu: the losses on a grid, by FFT."""
    size, span = 2**20, 60.0
    width = 2 * span / size
    spectrum, shift = np.ones(size // 2 + 1, complex), 0.0
    for std, rate, times in parts:
        x = np.linspace(-1 - 14 * std, 1 + 14 * std, 400_001)
        here, away, there = (norm.logpdf(x, at, std) for at in (1.0, 0.0, -1.0))
        p, q = (np.logaddexp(math.log(rate) + end, math.log1p(-rate) + away) for end in (here, there))
        weights, _ = np.histogram(p - q, bins=size, range=(-span, span), weights=np.exp(p) * (x[1] - x[0]))
        spectrum *= np.fft.rfft(np.fft.ifftshift(weights)) ** times
        shift += times * width / 2  # each loss is in the middle of its bin
    loss = (np.arange(size) - size // 2) * width
    if mu:
        edges = np.append(loss, span) - width / 2
        spectrum *= np.fft.rfft(np.fft.ifftshift(np.diff(norm.cdf(edges, mu**2 / 2, mu))))
    total = np.fft.fftshift(np.fft.irfft(spectrum, size))
    above = loss + shift > epsilon
    return float(np.sum(total[above] * -np.expm1(epsilon - loss[above] - shift)))


@pytest.mark.parametrize(("facts", "epsilon"), [(MNIST, 10.0), (MNIST, 1.0), (Facts.of(tiny_images(1437)), 10.0)])
def test_both_parts_are_paid_for(facts: Facts, epsilon: float) -> None:
    plan = make_plan(facts, method="dp-merf-ae", epsilon=epsilon)
    auto, std = plan.critic.autoencoder, plan.critic.embedding.noise_std
    updates = (auto.noise_multiplier, auto.learning_batch / facts.records, auto.releases)
    assert composed_delta([updates], 2 / std, plan.guarantee.epsilon) == pytest.approx(1e-5, rel=0.05)
    for part, mu in (([], 2 / std), ([updates], 0.0)):  # one of the two forgotten
        assert composed_delta(part, mu, plan.guarantee.epsilon) < 9e-6
    assert epsilon * 0.999 < plan.guarantee.epsilon <= epsilon
    assert plan.curve == ()  # all releases are made before the first step
    assert read_plan(plan.to_json()) == plan


def test_the_embedding_has_its_share_of_the_budget() -> None:
    """About a quarter in mu^2 where noise is plenty; whatever the number of records."""
    for records in (1437, 5000):
        facts = dataclasses.replace(MNIST, records=records)
        plan = make_plan(facts, method="dp-merf-ae", epsilon=1.0)
        whole = make_plan(facts, method="dp-merf", epsilon=1.0).privacy.noise_std
        assert (whole / plan.critic.embedding.noise_std) ** 2 == pytest.approx(0.25, abs=0.03)


def test_paper_has_the_figures_of_the_appendix_and_their_true_cost() -> None:
    plan = make_plan(MNIST, method="dp-merf-ae", preset="paper")
    auto, codes = plan.critic.autoencoder, plan.critic.embedding
    assert (codes.learning_batch, codes.releases, codes.rate(MNIST), plan.training.steps) == (500, 2040, 1 / 120, 2040)
    assert (codes.noise_scale, codes.noise_std) == pytest.approx((0.686, 1.372))
    assert (auto.learning_batch, auto.releases, auto.noise_multiplier) == (500, 2040, pytest.approx(1.372))
    assert plan.claimed.epsilon == pytest.approx(9.999, abs=5e-4)
    assert plan.guarantee.epsilon == pytest.approx(3.35, abs=0.005)
    assert composed_delta([(1.372, 1 / 120, 4080)], 0.0, plan.guarantee.epsilon) == pytest.approx(1e-5, rel=0.03)
    assert plan.curve[-1] == (2040, plan.guarantee.epsilon)
    assert plan.curve[0][1] > plan.guarantee.epsilon / 2  # the auto-encoder comes first
    with pytest.raises(PlanError, match="noise is fixed"):
        make_plan(MNIST, method="dp-merf-ae", preset="paper", epsilon=10)
    with pytest.raises(PlanError, match="steps"):
        dataclasses.replace(plan, training=dataclasses.replace(plan.training, steps=2039))


def test_what_it_cannot_protect_or_release_is_refused() -> None:
    with pytest.raises(PlanError, match="persons"):
        make_plan(dataclasses.replace(MNIST, persons=500), method="dp-merf-ae", steps=2)
    plan = tiny_baseline(tiny_images(), "dp-merf-ae")
    with pytest.raises(PlanError, match="decoded"):
        dataclasses.replace(plan, generator=dataclasses.replace(plan.generator, architecture="mlp"))
    embedding = dataclasses.replace(plan.critic.embedding, features=63)
    with pytest.raises(PlanError, match="features"):
        dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, embedding=embedding))


# --- the release of the embedding


def features_of(network: torch.nn.Module) -> CodeFeatures:
    return CodeFeatures(KernelSettings(features=64, length_scales=(1.58,)), network, CPU)


class WithBatchNorm(Autoencoder):
    """Looks at the whole batch: not allowed here."""

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        return on_sphere(torch.nn.functional.batch_norm(self.encoder(images), None, None, training=True))


@pytest.mark.parametrize(("kind", "alone"), [(Autoencoder, True), (WithBatchNorm, False)])
def test_one_record_moves_the_embedding_by_at_most_2(mechanism_for, kind: type[Autoencoder], alone: bool) -> None:
    """The features act on each record alone: whoever is changed, the rows of the others stay, bit for bit."""
    torch.manual_seed(0)
    data, features = tiny_images(), features_of(kind(image_size=8, channels=1, width=4))
    other = changed_in_one_record(data, 17)
    before, after = (features(torch.from_numpy(d.images).float() / 255) for d in (data, other))
    torch.testing.assert_close(before.norm(dim=1), torch.ones(len(before)))
    same = (before == after).all(dim=1)
    assert set(np.flatnonzero(~same.numpy())) == {17} or not alone
    contribution = Contribution(clip_norm=1.0, counts=True)
    found = [embed(d, features, mechanism_for(contribution, noise_std=1e-6)) for d in (data, other)]
    moved = torch.cat([found[0].sums - found[1].sums, (found[0].counts - found[1].counts)[:, None]], dim=1).norm()
    assert (1.9 < moved < 2.0001) == alone


# --- the run


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tiny_baseline(tiny_images(), "dp-merf-ae", insecure_reproducible=True)


def finished(plan: Plan, data: ImageData, folder: Path) -> RunFolder:
    run = RunFolder.create(folder, plan)
    assert loop.run(run, data, device=CPU)
    return run


def test_the_released_decoder_is_the_auto_encoders(plan: Plan, tmp_path: Path, monkeypatch) -> None:
    seen: list[DPMerfAE] = []
    original = DPMerfAE.learn

    def learn(self, step: int, generator: Generator) -> None:
        seen.append(self)
        original(self, step, generator)

    monkeypatch.setattr(DPMerfAE, "learn", learn)
    model = gswgan.load(finished(plan, tiny_images(), tmp_path / "run").root, device="cpu")
    network = model._fitted().network
    for name, value in seen[-1].autoencoder.decoder.state_dict().items():
        assert torch.equal(network.decoder.state_dict()[name], value), name
    codes = torch.randn(7, plan.generator.latent)
    assert network(codes, torch.arange(7) % 3).shape == (7, 1, 8, 8)
    assert network.train()(codes, torch.arange(7) % 3).shape == (7, CODE)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_run_killed_in_any_part_goes_on_bit_for_bit(preset: str, tmp_path: Path, monkeypatch) -> None:
    data = tiny_images(2000)
    plan = tiny_baseline(data, "dp-merf-ae", preset=preset, insecure_reproducible=True)
    straight = finished(plan, data, tmp_path / "straight")
    _, entries, _ = read_ledger(straight.ledger)
    assert Counter(entry.event for entry in entries) == Counter(plan.releases())
    assert [entry.name.partition(" update")[0] for entry in entries[:4]] == ["auto-encoder"] * 4
    original = GaussianMechanism.answer
    for last in (2, 4):  # in the middle of the auto-encoder, and between its end and the first checkpoint
        calls = 0

        def release(self, name, blocks, *, slots, width, last: int = last):
            nonlocal calls
            calls += 1
            if calls > last:
                raise MemoryError
            return original(self, name, blocks, slots=slots, width=width)

        folder = RunFolder.create(tmp_path / str(last), plan)
        with monkeypatch.context() as patch, contextlib.suppress(MemoryError):
            patch.setattr(GaussianMechanism, "answer", release)
            loop.run(folder, data, device=CPU)
        assert not folder.is_finished
        assert loop.run(folder, data, device=CPU)
        assert folder.generator.read_bytes() == straight.generator.read_bytes()
        assert folder.ledger.read_bytes() == straight.ledger.read_bytes()


class Leaky(DPMerfAE):
    """Chooses its auto-encoder by a look at the data that does not pass a mechanism."""

    def _train(self, data: ImageData) -> None:
        super()._train(data)
        with torch.no_grad():
            self.autoencoder.decoder.project.bias += float(data.images[17].mean())


@pytest.mark.parametrize("kind", [DPMerfAE, Leaky])
def test_with_the_releases_replayed_one_record_changes_nothing(plan, kind, tmp_path: Path, monkeypatch) -> None:
    """Auto-encoder, decoder and generator are made of releases, fakes and public draws alone."""
    released: dict[str, Answer] = {}
    original = GaussianMechanism.answer

    def release(self, name, blocks, *, slots, width):
        found = original(self, name, blocks, slots=slots, width=width)
        return released.setdefault(name, found)

    monkeypatch.setattr(GaussianMechanism, "answer", release)
    monkeypatch.setattr(dp_merf_ae, "DPMerfAE", kind)
    runs = [
        finished(plan, data, tmp_path / str(place))
        for place, data in enumerate((tiny_images(), changed_in_one_record(tiny_images(), 17)))
    ]
    assert len(released) == plan.critic.autoencoder.releases + 1
    assert (runs[0].generator.read_bytes() == runs[1].generator.read_bytes()) == (kind is DPMerfAE)
    assert (runs[0].embedding.read_bytes() == runs[1].embedding.read_bytes()) or kind is Leaky


def test_the_auto_encoder_learns_and_codes_are_matched(tmp_path: Path, monkeypatch) -> None:
    """Stripes come out as stripes: each class near its own mean image, and not near the others'."""
    monkeypatch.setattr(dp_merf_ae, "TINY_UPDATES", 40)
    data = tiny_images(1500)
    plan = make_plan(Facts.of(data), method="dp-merf-ae", epsilon=10, steps=150, insecure_reproducible=True)
    model = gswgan.load(finished(plan, data, tmp_path / "run").root, device="cpu")
    images, labels = model.sample(150, seed=0)
    real = np.stack([data.images[data.labels == k, 0].mean(axis=0) for k in range(3)])
    made = np.stack([images[labels == k].mean(axis=0) for k in range(3)])
    apart = np.linalg.norm((made[:, None] - real[None]).reshape(3, 3, -1), axis=2)
    assert (apart.argmin(axis=1) == np.arange(3)).all()
    assert apart.diagonal().max() < 0.5 * (apart + np.diag([np.inf] * 3)).min()


def test_the_kernel_critic_is_the_one_of_gs_wgan(plan: Plan) -> None:
    assert isinstance(plan.critic.embedding, dp_merf_ae.EmbeddingSettings)
    assert issubclass(CodeFeatures, dp_merf_ae.RandomFeatures)
    assert dp_merf_ae.KernelCritic is KernelCritic
