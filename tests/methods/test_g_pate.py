from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from teachers import BATCH, COUNT, STEPS, isolated, play

from conftest import key_of, tiny_generator, tiny_images
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.data import ImageData
from gswgan.errors import DataError, PlanError, PrivacyError
from gswgan.methods.g_pate import GPate, GPateSettings
from gswgan.privacy import Accountant, Gaussian, Ledger, Streams, VoteMechanism, calibrate
from gswgan.privacy.accountant import gaussian_log_delta
from gswgan.privacy.claims import gaussian_rdp
from gswgan.privacy.events import tally

CPU = torch.device("cpu")
SETTINGS = GPateSettings(
    teachers=COUNT, discriminator=EnsembleSettings(width=4, updates=2, learning_batch=4, learning_rate=3e-3),
    projection=3, bound=0.02, check_noise=2.0, vote_noise=1.0,
)  # fmt: skip


def make(folder: Path, data: ImageData | None, *, secret: int = 3, public: int = 0, **changes) -> GPate:
    folder.mkdir(parents=True, exist_ok=True)
    batch = changes.pop("batch_size", BATCH)
    ledger = Ledger(folder / "ledger", observer="public", context="plan", journal=folder / "journal")
    critic = GPate(
        dataclasses.replace(SETTINGS, **changes), image_size=8, channels=1, classes=3, batch_size=batch,
        ledger=ledger, public=Streams.public(public), secret=key_of(secret), device=CPU,
    )  # fmt: skip
    if data is not None:
        critic.prepare(data)
    return critic


def test_changing_one_record_changes_exactly_one_teacher(tmp_path, stripes) -> None:
    isolated(make, tmp_path, stripes)


@pytest.mark.parametrize("leak", ["all see one record", "all see one part"])
def test_the_check_finds_teachers_that_share_records(tmp_path, stripes, leak: str) -> None:
    def spoil(critic: GPate) -> None:
        parts = critic.teachers.partitions
        table = parts.table.clone()
        if leak == "all see one record":
            table[:, 0] = 17
        else:
            table[:] = table[(table == 17).any(dim=1).nonzero()[0, 0]]
        critic.teachers.partitions = Partitions(table=table, sizes=parts.sizes)

    with pytest.raises(AssertionError):
        isolated(make, tmp_path, stripes, spoil)


def test_the_check_finds_a_generator_that_sees_past_the_votes(tmp_path, stripes, monkeypatch) -> None:
    """A way around the mechanism: the teachers' mean gradient with every answer."""
    original = GPate.upstream_gradient

    def leaking(self: GPate, fake: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        mean = self.teachers.input_gradients(np.arange(COUNT), fake.detach(), labels).mean(dim=0)
        return original(self, fake, labels) + mean

    monkeypatch.setattr(GPate, "upstream_gradient", leaking)
    with pytest.raises(AssertionError):
        isolated(make, tmp_path, stripes)


def fakes(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return images, torch.arange(BATCH) % 3


def test_the_votes_are_the_bins_of_the_projected_gradients(tmp_path, stripes) -> None:
    """Teacher by teacher, fake by fake, in plain loops."""
    critic = make(tmp_path, stripes, bins=4)
    play(critic, tiny_generator())
    images, labels = fakes()
    directions = critic.directions(images)
    votes = critic.votes(images, labels, directions).view(COUNT, BATCH, 3)
    edges = np.linspace(-0.02, 0.02, 5)
    for k in range(COUNT):
        gradient = critic.teachers.input_gradients(np.array([k]), images, labels)[0] / BATCH
        for i in range(BATCH):
            projected = gradient[i].flatten().double().numpy() @ directions[i].double().numpy()
            expected = np.searchsorted(edges[1:-1], projected, side="right")
            near = np.abs(projected[:, None] - edges).min() < 1e-6
            assert near or votes[k, i].tolist() == expected.tolist()
    assert {0, 1, 2, 3} <= set(votes.flatten().tolist())


def test_the_answer_is_the_confident_gnmax_of_the_counts(tmp_path, stripes, monkeypatch) -> None:
    """The middle of the bin with most noisy votes where the noisy largest count passes, else 0, projected back."""
    critic = make(tmp_path, stripes)
    critic.learn(5, tiny_generator())
    rng = np.random.default_rng(0)
    largest, counts = rng.normal(6, 2, BATCH * 3), rng.normal(1, 2, (BATCH * 3, 10))
    largest[0], largest[1] = 6.0, np.nextafter(6.0, 0.0)
    names = []

    def release(mechanism: VoteMechanism, name: str, votes: torch.Tensor) -> np.ndarray:
        names.append(name)
        return largest if mechanism.ballot.largest else counts

    monkeypatch.setattr(VoteMechanism, "answer", release)
    images, labels = fakes()
    answer = critic.upstream_gradient(images, labels)
    directions = critic.directions(images).double().numpy()
    expected = np.zeros((BATCH, 64))
    for i in range(BATCH):
        for j in range(3):
            question = 3 * i + j
            if largest[question] >= 0.5 * COUNT:
                middle = -0.02 + (np.argmax(counts[question]) + 0.5) * 0.004
                expected[i] += middle * directions[i, :, j]
    assert names == ["step 5 check", "step 5 votes"]
    np.testing.assert_allclose(answer.flatten(1) / BATCH, expected, atol=1e-6)
    largest[:] = -1.0
    assert (critic.upstream_gradient(images, labels) == 0).all()  # nobody agrees: nothing is learnt


def test_teachers_that_agree_are_heard(tmp_path, stripes) -> None:
    """Without noise and in very many directions, the answer is the gradient on which the teachers agree."""
    critic = make(
        tmp_path, stripes, projection=2048, check_noise=1e-9, vote_noise=1e-9, bound=0.005, bins=50, threshold=0.9
    )
    for value in (*critic.teachers.params.values(), *critic.teachers.buffers.values()):
        value[:] = value[:1].clone()
    images, labels = fakes()
    answer = critic.upstream_gradient(images, labels).flatten(1)
    gradient = critic.teachers.input_gradients(np.array([0]), images, labels)[0].flatten(1)
    assert torch.cosine_similarity(answer, gradient).min() > 0.95
    assert answer.norm(dim=1) == pytest.approx(gradient.norm(dim=1), rel=0.1)
    assert critic.metrics()["passed"] == critic.metrics()["agreement"] == 1.0


def test_a_gradient_that_is_no_number_does_not_vote(tmp_path, stripes) -> None:
    critic = make(tmp_path, stripes)
    for bad, value in ((2, math.nan), (7, math.inf)):
        critic.teachers.params["linear.weight"][bad] = value
    images, labels = fakes()
    votes = critic.votes(images, labels, critic.directions(images))
    assert (votes[[2, 7]] == -1).all()
    others = [k for k in range(COUNT) if k not in (2, 7)]
    assert (votes[others] >= 0).all()
    assert torch.isfinite(critic.upstream_gradient(images, labels)).all()


def test_projections_are_public_fresh_and_have_their_variance(tmp_path) -> None:
    critic, other_key, other_seed = make(tmp_path, None), make(tmp_path, None, secret=9), make(tmp_path, None, public=1)
    images = torch.zeros(50, 1, 8, 8)
    first = critic.directions(images)
    assert torch.equal(first, other_key.directions(images))
    assert not torch.equal(first, other_seed.directions(images))
    critic._step = 1
    second = critic.directions(images)
    assert first.shape == (50, 64, 3)
    rows = torch.cat([first.flatten(1), second.flatten(1)])
    assert (torch.corrcoef(rows) - torch.eye(100)).abs().max() < 0.4  # every fake and step has its own
    assert first.var() == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("which", [0, 1])
def test_the_noise_of_both_releases_has_its_scale_and_no_other(tmp_path, which: int) -> None:
    settings = dataclasses.replace(SETTINGS, check_noise=60.0, vote_noise=10.0)
    scale, other = ((60.0, 10.0), (10.0, 60.0))[which]
    critic = make(tmp_path, tiny_images(), check_noise=60.0, vote_noise=10.0, batch_size=1500)
    mechanism = (critic._check, critic._vote)[which]
    assert mechanism.ballot == settings.ballots(1500)[which]
    votes = torch.from_numpy(np.random.default_rng(0).integers(0, 10, (COUNT, 4500)))
    noise = (mechanism.answer("a", votes) - mechanism.counts(votes)).ravel()[:20_000]
    assert kstest(noise / scale, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2, other / scale):
        assert kstest(noise / (scale * wrong), "norm").pvalue < 1e-3


def test_the_sensitivity_of_a_step_is_attained_and_not_exceeded(tmp_path, stripes) -> None:
    """One teacher replaced by another network: the counts and the largest counts move by the stated L2 norm at most."""
    critic = make(tmp_path, stripes, bins=2)
    play(critic, tiny_generator())
    images, labels = fakes()
    directions = critic.directions(images)
    before = critic.votes(images, labels, directions)
    check, vote = (next(iter(tally(e))) for e in critic.settings.events(steps=1, batch_size=BATCH).event.events)
    found = [0.0, 0.0]
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        other = before.clone()
        other[3] = torch.randint(0, 2, (BATCH * 3,), generator=generator)
        if seed == 0:
            other[3] = 1 - before[3]  # the opposite everywhere
        for i, mechanism in enumerate((critic._check, critic._vote)):
            change = mechanism.counts(other) - mechanism.counts(before)
            found[i] = max(found[i], float(np.sqrt((change.astype(float) ** 2).sum())))
    assert found[1] == pytest.approx(vote.sensitivity) == pytest.approx(math.sqrt(2 * BATCH * 3))
    assert 0 < found[0] <= check.sensitivity == pytest.approx(math.sqrt(BATCH * 3))
    unanimous = torch.zeros_like(before)
    other = unanimous.clone()
    other[3] = 1
    change = critic._check.counts(other) - critic._check.counts(unanimous)
    assert np.sqrt((change.astype(float) ** 2).sum()) == pytest.approx(check.sensitivity)


@pytest.mark.parametrize("forgotten", ["the batch", "the directions", "that two counts move"])
def test_a_step_that_forgets_part_of_its_sensitivity_is_refused(tmp_path, forgotten: str) -> None:
    _, vote = SETTINGS.ballots(BATCH)
    questions = {"the batch": 3, "the directions": BATCH, "that two counts move": 3 * BATCH / 2}[forgotten]
    event = Gaussian(noise_std=1.0, sensitivity=math.sqrt(2 * questions))
    ledger = Ledger(tmp_path / "ledger", observer="public", context="plan")
    with pytest.raises(PrivacyError):
        VoteMechanism(ballot=vote, event=event, ledger=ledger, streams=key_of(0))


def test_the_ledger_has_what_was_accounted_for(tmp_path, stripes) -> None:
    critic = make(tmp_path, stripes)
    play(critic, tiny_generator())
    planned = SETTINGS.events(steps=STEPS, batch_size=BATCH)
    assert tally(critic._check.ledger.total()) == tally(planned)
    names = [entry.name for entry in critic._check.ledger.entries]
    assert names == [f"step {step} {what}" for step in range(STEPS) for what in ("check", "votes")]
    with pytest.raises(PrivacyError):  # a batch that was not accounted for
        critic.upstream_gradient(torch.zeros(BATCH + 1, 1, 8, 8), torch.zeros(BATCH + 1, dtype=torch.int64))


PAPER = GPateSettings()


@pytest.mark.parametrize("order", [2.0, 20.0])
def test_a_coordinate_costs_what_the_papers_of_gnmax_and_g_pate_say(order: float) -> None:
    """GNMax is (order, order / sigma_2^2)-RDP, its check (order, order / (2 sigma_1^2)) (Papernot et al. 2018)."""
    check, vote = tally(dataclasses.replace(PAPER, projection=1).events(steps=1, batch_size=1))
    assert gaussian_rdp(check, order) == pytest.approx(order / (2 * 600.0**2))
    assert gaussian_rdp(vote, order) == pytest.approx(order / 100.0**2)


def test_the_whole_run_costs_the_exact_gaussian_figure() -> None:
    """At the appendix's noises epsilon 10 is spent after 65 steps of 30 fakes: mu^2 = T B k (1/s1^2 + 2/s2^2)."""
    epsilon = Accountant().epsilon(PAPER.events(steps=65, batch_size=30), 1e-5)
    mu = math.sqrt(65 * 30 * 10 * (1 / 600**2 + 2 / 100**2))
    assert math.exp(float(gaussian_log_delta(mu, epsilon))) == pytest.approx(1e-5, rel=2e-3)
    assert epsilon == pytest.approx(9.93, abs=0.01)
    assert Accountant().epsilon(PAPER.events(steps=66, batch_size=30), 1e-5) > 10


def test_the_total_agrees_with_autodp() -> None:
    zoo = pytest.importorskip("autodp.mechanism_zoo")
    transformer = pytest.importorskip("autodp.transformer_zoo")
    both = [zoo.ExactGaussianMechanism(s) for s in (600.0 / math.sqrt(300), 100.0 / math.sqrt(600))]
    total = transformer.ComposeGaussian()(both, [65, 65])
    found = Accountant().epsilon(PAPER.events(steps=65, batch_size=30), 1e-5)
    assert found == pytest.approx(total.get_approxDP(1e-5), rel=1e-3)


def test_calibration_scales_both_noises() -> None:
    def run(noise: float):
        settings = dataclasses.replace(PAPER, check_noise=6 * noise, vote_noise=noise)
        return settings.events(steps=500, batch_size=30)

    noise = calibrate(run, epsilon=10.0, delta=1e-5, accountant=Accountant())
    assert noise == pytest.approx(100 * math.sqrt(500 / 65.8), rel=0.005)


def test_bad_settings_are_refused(tmp_path, stripes) -> None:
    for changes in ({"bound": 0.0}, {"threshold": 1.5}, {"threshold": -0.1}):
        with pytest.raises(PlanError):
            dataclasses.replace(SETTINGS, **changes)
    for changes in ({"bins": 1}, {"projection": 0}, {"check_noise": 0.0}, {"vote_noise": -1.0}):
        with pytest.raises(PrivacyError):
            make(tmp_path, None, **changes)
    with pytest.raises(DataError):
        make(tmp_path, stripes, teachers=97)


def test_it_learns_when_the_noise_is_small(tmp_path) -> None:
    """Stripes of three kinds: the fakes of a class come to look like its records."""
    data = tiny_images(240)
    critic = make(
        tmp_path, data, teachers=24, projection=20, check_noise=1.0, vote_noise=1.0, bound=1e-3, batch_size=BATCH
    )
    generator = tiny_generator(80, learning_rate=2e-2)
    means = np.stack([data.images[data.labels == c].mean(axis=0).ravel() for c in range(3)]) / 255

    def likeness() -> float:
        images, labels = generator.fakes(90, "test")
        return float(np.mean([np.corrcoef(x.ravel(), means[y])[0, 1] for x, y in zip(images.numpy(), labels)]))

    before = likeness()
    play(critic, generator, steps=80)
    assert before < 0.2 < 0.4 < likeness()
