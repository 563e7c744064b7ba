from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from conftest import changed_in_one_record, copied, key_of, same, tiny_images
from gswgan.critics import dp_sgd, dp_sgd_gan
from gswgan.critics.discriminator import Discriminator, cross_entropy
from gswgan.critics.dp_sgd_gan import DPSGDGAN
from gswgan.critics.ensemble.ensemble import QUANTILES
from gswgan.data import ImageData, make_image_data
from gswgan.errors import GswganError, PlanError, PrivacyError
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.dp_sgd_gan import PRESETS, DPSGDGANSettings
from gswgan.privacy import Accountant, Gaussian, GaussianMechanism, Ledger, Sampled, Streams, calibrate
from gswgan.privacy import mechanism as mechanisms
from gswgan.privacy.mechanism import Answer
from gswgan.run.loop import train

CPU = torch.device("cpu")
CLIP = 0.7
SETTINGS = DPSGDGANSettings(
    clip_norm=CLIP, noise_multiplier=1.5, learning_batch=24, releases=12, updates=2, width=4, learning_rate=1e-2
)


class Fakes:
    """A generator that is public and fixed: its fakes depend on the index alone."""

    def __init__(self, shape: tuple[int, ...] = (1, 8, 8), classes: int = 3) -> None:
        self.shape, self.classes = shape, classes

    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        rng = Streams.public(5).generator("fakes", *index)
        images = torch.from_numpy(rng.random((count, *self.shape), dtype=np.float32))
        return images, torch.from_numpy(rng.permutation(np.resize(np.arange(self.classes), count)))


FAKES: Generator = Fakes()  # type: ignore[assignment]


def make(
    data: ImageData,
    mechanism_for,
    *,
    settings: DPSGDGANSettings = SETTINGS,
    secret: int = 3,
    public: int = 0,
    **changes,
) -> DPSGDGAN:
    settings = dataclasses.replace(settings, **changes)
    critic = DPSGDGAN(
        settings, mechanism_for(settings.contribution, event=settings.event(data.n), key=secret),
        image_size=data.image_size, channels=data.channels, classes=data.classes,
        public=Streams.public(public), device=CPU,
    )  # fmt: skip
    critic.prepare(data)
    return critic


def drawn(critic: DPSGDGAN, step: int, update: int) -> np.ndarray:
    """Who takes part in one update."""
    return critic.gradients.draw(f"step {step} update {update}")


def watch(critic: DPSGDGAN) -> list[tuple[str, np.ndarray]]:
    """The names and sums of all releases of this critic, in a list that grows."""
    seen: list[tuple[str, np.ndarray]] = []
    original = critic.gradients.mechanism.answer

    def release(name, blocks, *, slots, width):
        released = original(name, blocks, slots=slots, width=width)
        seen.append((name, released.sums))
        return released

    critic.gradients.mechanism.answer = release  # type: ignore[method-assign]
    return seen


# What it costs


def test_the_papers_run_is_7_93_under_replace_one() -> None:
    """n = 60,000, batch 600, noise 2.1 C, 30,000 updates (the GS-WGAN paper's appendix)."""
    total = PRESETS["dp-cgan"].events(60_000)
    assert Accountant().epsilon(total, 1e-5) == pytest.approx(7.93, abs=0.005)
    assert replace_one_by_fft(rate=0.01, multiplier=2.1, times=30_000, delta=1e-5) == pytest.approx(7.93, abs=0.005)


def replace_one_by_fft(*, rate: float, multiplier: float, times: int, delta: float) -> float:
    """Epsilon of (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1), composed: an integral and an FFT of our own."""
    x = np.linspace(-12, 12, 2_000_001) * multiplier
    edges = np.concatenate([[-np.inf], (x[1:] + x[:-1]) / 2, [np.inf]])

    def mixture(mean: float) -> np.ndarray:
        law = (1 - rate) * stats.norm.cdf(edges, 0, multiplier) + rate * stats.norm.cdf(edges, mean, multiplier)
        return np.diff(law)

    def log_density(mean: float) -> np.ndarray:
        return np.logaddexp(
            math.log1p(-rate) - x**2 / (2 * multiplier**2), math.log(rate) - (x - mean) ** 2 / (2 * multiplier**2)
        )

    loss, step, half = log_density(1.0) - log_density(-1.0), 2e-4, 2**18
    one = np.bincount(np.rint(loss / step).astype(np.int64) + half, weights=mixture(1.0), minlength=2 * half)
    composed = np.fft.irfft(np.fft.rfft(np.roll(one, -half)) ** times, 2 * half)
    losses = np.fft.fftfreq(2 * half, 1 / (2 * half)) * step
    epsilons = np.linspace(0, 20, 4001)
    deltas = [float((composed * np.maximum(0, -np.expm1(e - losses)))[losses > e].sum()) for e in epsilons[::20]]
    place = int(np.argmax(np.array(deltas) <= delta)) * 20
    fine = epsilons[place - 20 : place + 1]
    exact = [float((composed * np.maximum(0, -np.expm1(e - losses)))[losses > e].sum()) for e in fine]
    return float(np.interp(math.log(delta), np.log(exact)[::-1], fine[::-1]))


def poisson_event(rate: float, multiplier: float, times: int):
    import dp_accounting as dp

    one = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier))
    return dp.SelfComposedDpEvent(one, times)


def test_the_papers_run_is_3_77_under_add_or_remove() -> None:
    """The relation of DP-SGD's own literature, straight from dp-accounting."""
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    accountant.compose(poisson_event(0.01, 2.1, 30_000))
    assert accountant.get_epsilon(1e-5) == pytest.approx(3.77, abs=0.005)


def test_opacus_agrees_under_add_or_remove() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    prv, rdp = accountants.PRVAccountant(), accountants.RDPAccountant()
    prv.history = rdp.history = [(2.1, 0.01, 30_000)]
    assert prv.get_epsilon(1e-5) == pytest.approx(3.77, abs=0.02)
    assert 3.77 < rdp.get_epsilon(1e-5) < 4.15


@pytest.mark.parametrize(
    ("rate", "multiplier", "times", "stated"),
    [(1 / 118, 2.0, 174_000, 10.0), (1 / 469, 1.0, 450_000, 10.0), (1 / 118, 14.0, 165_000, 1.0)],
)
def test_the_epsilons_of_private_gans_revisited(rate: float, multiplier: float, times: int, stated: float) -> None:
    """Bie et al. 2023 state 10, 10 and 1 for their runs: Renyi accounting, add-or-remove, one over the batches."""
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(poisson_event(rate, multiplier, times))
    assert 0.98 * stated < accountant.get_epsilon(1e-5) <= stated


def test_revisited_is_21_under_replace_one() -> None:
    """Twice what its paper states, as for every DP-SGD run: the table's relation has to be said."""
    assert Accountant().epsilon(PRESETS["revisited"].events(60_000), 1e-5) == pytest.approx(20.97, abs=0.01)


def test_noise_is_calibrated_on_the_whole_run() -> None:
    def run(multiplier: float):
        return dataclasses.replace(SETTINGS, noise_multiplier=multiplier, releases=300).events(1437)

    noise = calibrate(run, epsilon=10, delta=1e-5, accountant=Accountant())
    assert 9.99 < Accountant().epsilon(run(noise), 1e-5) <= 10
    half = dataclasses.replace(SETTINGS, noise_multiplier=noise, releases=150)
    assert Accountant().epsilon(half.events(1437), 1e-5) < 8  # each update costs


def test_the_presets_are_the_papers() -> None:
    paper, bie = PRESETS["dp-cgan"], PRESETS["revisited"]
    assert (paper.clip_norm, paper.noise_multiplier, paper.learning_batch, paper.releases) == (1.1, 2.1, 600, 30_000)
    assert (bie.clip_norm, bie.noise_multiplier, bie.learning_batch) == (1.0, 2.0, 512)
    assert (bie.learning_rate, bie.betas) == (2e-4, (0.5, 0.999))
    assert paper.event(60_000).event.noise_std == pytest.approx(2.31)
    assert paper.event(60_000).rate == 0.01


@pytest.mark.parametrize("batch", [0, 97])
def test_a_batch_that_no_rate_gives_is_refused(batch: int) -> None:
    with pytest.raises(PlanError, match="learning_batch"):
        dataclasses.replace(SETTINGS, learning_batch=batch).event(96)


def test_a_mechanism_that_accounts_for_something_else_is_refused(mechanism_for, stripes: ImageData) -> None:
    shape = {"image_size": 8, "channels": 1, "classes": 3, "public": Streams.public(0), "device": CPU}
    too_small = Gaussian(noise_std=1.0, sensitivity=CLIP)  # that of one contribution: half of what replacing moves
    with pytest.raises(PrivacyError, match="sensitivity"):
        mechanism_for(SETTINGS.contribution, event=Sampled(rate=0.25, event=too_small))
    everyone = mechanism_for(SETTINGS.contribution)
    looser = mechanism_for(
        dataclasses.replace(SETTINGS, clip_norm=1.0).contribution,
        event=dataclasses.replace(SETTINGS, clip_norm=1.0).event(96),
    )
    for mechanism in (everyone, looser):
        with pytest.raises(PrivacyError, match="mechanism"):
            DPSGDGAN(SETTINGS, mechanism, **shape)


# The gradients


@pytest.mark.parametrize(("side", "channels", "classes"), [(8, 1, 10), (9, 3, 2), (28, 1, 1), (32, 3, 4), (64, 1, 3)])
def test_gradients_of_single_records_are_autograds(mechanism_for, side: int, channels: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, side, side, channels)).astype(np.uint8)
    labels = None if classes == 1 else np.arange(6) % classes
    data = make_image_data(images, labels, classes=classes)
    critic = make(data, mechanism_for, learning_batch=3)
    for real in (True, False):
        rows = critic.rows(*critic.records(np.arange(6)), real=real)
        for index in range(6):
            critic.discriminator.zero_grad()
            cross_entropy(critic.discriminator(*critic.records(np.array([index]))), real=real).sum().backward()
            alone = torch.cat([p.grad.flatten() for p in critic.discriminator.parameters()])
            torch.testing.assert_close(rows[index], alone, rtol=1e-4, atol=1e-6)


def test_the_discriminator_is_a_convolutional_one() -> None:
    """Against torch's own convolution, and with a label that matters."""
    torch.manual_seed(0)
    network = Discriminator(image_size=28, channels=3, classes=4, width=4)
    images, labels = torch.rand(5, 3, 28, 28), torch.tensor([0, 1, 2, 3, 0])
    maps = images
    for layer in network.body[:-1]:
        maps = torch.nn.Conv2d.forward(layer, maps) if isinstance(layer, torch.nn.Conv2d) else layer(maps)
    assert maps.shape == (5, 16, 3, 3)
    flat = maps.flatten(1)
    expected = network.head(flat)[:, 0] + (network.label.weight[labels] * flat).sum(1)
    torch.testing.assert_close(network(images, network.codes(labels)), expected)
    assert not torch.allclose(network(images, network.codes(labels.roll(1))), expected)


def test_a_row_is_bit_identical_wherever_it_stands_and_whoever_is_there(mechanism_for) -> None:
    """Its own coin must not change another record's gradient, not in the last bit."""
    for data, width, batch in (
        (tiny_images(96), 4, 20), (tiny_images(96), 16, 9), (tiny_images(100, classes=10), 8, 24),
        (tiny_images(40, side=28), 8, 20),
    ):  # fmt: skip
        check_places(make(data, mechanism_for, width=width, learning_batch=batch), data.n)


def test_in_pairs_a_row_depends_on_its_record_and_on_public_fakes_alone(mechanism_for, stripes: ImageData) -> None:
    """The fakes' part is the same whatever the data is; the pair is clipped as one row, which moves nobody else's."""
    fake, labels = FAKES.fakes(24, "discriminator", 0, 0)
    pair = [steepened(make(data, mechanism_for, pairs=True)) for data in (stripes, changed_in_one_record(stripes, 17))]
    for critic in pair:
        critic._rivals = critic._mean_by_class(fake, labels)
    assert torch.equal(pair[0]._rivals, pair[1]._rivals)
    check_places(pair[0], stripes.n)
    rows = [torch.cat([rows[:, 0] for rows, _ in critic.blocks(np.arange(stripes.n))]) for critic in pair]
    differ = (rows[0] != rows[1]).any(dim=1)
    assert differ.nonzero().flatten().tolist() == [17]
    assert rows[0].norm(dim=1).min() > CLIP  # as it comes, a pair is too long
    grid = mechanisms.clip_to_grid(rows[0], CLIP)
    assert (grid.double().norm(dim=1) <= 2.0**mechanisms.GRID_BITS).all()


def check_places(critic: DPSGDGAN, n: int) -> None:
    everyone = np.arange(n)
    alone = [next(iter(critic.blocks(np.array([k]))))[0][0] for k in everyone]
    rng = np.random.default_rng(1)
    sets = [
        everyone,
        everyone[1:],
        everyone[::-1],
        *(np.sort(rng.permutation(n)[: rng.integers(2, n)]) for _ in range(8)),
    ]
    for members in sets:
        found = torch.cat([rows for rows, _ in critic.blocks(members)])
        assert len(found) == len(members)  # nobody is dropped, no copy counts
        for row, k in zip(found, members):
            assert torch.equal(row, alone[k])


def test_chunks_have_one_size(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    monkeypatch.setitem(dp_sgd.NUMBERS_PER_CHUNK, "cpu", 4000)
    critic = make(stripes, mechanism_for)
    sizes = set()
    original = critic.rows
    critic.rows = lambda images, codes, *, real: (sizes.add(len(images)), original(images, codes, real=real))[1]  # type: ignore[method-assign]
    for members in (np.arange(1), np.arange(50), np.arange(96)):
        list(critic.blocks(members))
    assert sizes == {critic.gradients.chunk}
    assert critic.gradients.chunk == dp_sgd.LANES  # as little memory as it can do with


# The release


def noise_of(critic: DPSGDGAN, updates: int) -> np.ndarray:
    """What each update adds beyond the clipped gradients, over the noise that was accounted for: one row an update.

    Worked out from what the optimizer is given, with the gradients clipped and averaged here by other means.
    """
    given: list[torch.Tensor] = []
    critic.descend = given.append  # type: ignore[method-assign]
    found = []
    for update in range(updates):
        critic._update(0, update, FAKES)
        members = drawn(critic, 0, update)
        real = critic.rows(*critic.records(members), real=True).double().numpy()
        fake, labels = FAKES.fakes(24, "discriminator", 0, update)
        public = critic.rows(fake, critic.discriminator.codes(labels), real=False).double().numpy()
        if critic.settings.pairs:
            of_class = {k: public[labels.numpy() == k].mean(axis=0) for k in range(3)}
            paired = real + np.array([of_class[k] for k in critic.labels[members].tolist()])
            expected = clipped(paired).sum(axis=0) / 24
        else:
            expected = clipped(real).sum(axis=0) / 24 + clipped(public).mean(axis=0)
        found.append((given[-1].double().numpy() - expected) * 24 / (1.5 * CLIP))
    return np.array(found)


def clipped(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True) / CLIP)


def is_standard_normal(values: np.ndarray) -> bool:
    """All values, the size of each update's, and their means over the updates (where a fixed error cannot hide)."""
    everything = stats.kstest(values.ravel(), "norm").pvalue
    means = stats.kstest(values.mean(axis=0) * math.sqrt(len(values)), "norm").pvalue
    below = stats.chi2.cdf((values**2).sum(axis=1), values.shape[1])
    sizes = 2 * np.minimum(below, 1 - below).min() * len(values)
    return min(everything, means, sizes) > 1e-3


@pytest.mark.parametrize("pairs", [False, True])
def test_an_update_is_the_clipped_sum_with_the_noise_that_was_accounted_for(
    mechanism_for, stripes: ImageData, pairs: bool
) -> None:
    critic = steepened(make(stripes, mechanism_for, releases=100, pairs=pairs))
    noise = noise_of(critic, 60)
    assert is_standard_normal(noise)
    assert not is_standard_normal(noise * 2 / 3)
    assert not is_standard_normal(noise * 3 / 2)
    assert abs(np.corrcoef(noise) - np.eye(60)).max() < 6 / math.sqrt(noise.shape[1])  # fresh in every update
    assert [entry.name for entry in critic.gradients.mechanism.ledger.entries[:2]] == [
        "step 0 update 0",
        "step 0 update 1",
    ]
    assert {entry.event for entry in critic.gradients.mechanism.ledger.entries} == {SETTINGS.event(96)}


def test_in_pairs_what_records_and_fakes_have_in_common_does_not_use_the_clip_up(mechanism_for, stripes) -> None:
    """Fakes that are the records themselves leave only what sets a record apart from its class."""
    longest = {}
    for pairs in (False, True):
        critic = steepened(make(stripes, mechanism_for, pairs=pairs))
        with torch.no_grad():
            critic.discriminator.head.weight.zero_()
            critic.discriminator.label.weight.zero_()
            critic.discriminator.head.bias.zero_()  # undecided: as far from one answer as from the other
        images, codes = critic.records(np.arange(96))
        if pairs:
            critic._rivals = critic._mean_by_class(images, codes.argmax(dim=1))
        rows = torch.cat([rows[:, 0] for rows, _ in critic.blocks(np.arange(96))])
        longest[pairs] = rows.norm(dim=1).max()
        if pairs:
            torch.testing.assert_close(rows.mean(dim=0), torch.zeros(rows.shape[1]), rtol=0, atol=1e-4)
    assert longest[True] < longest[False] / 2


def without_clip(rows: torch.Tensor, clip_norm: float) -> torch.Tensor:
    return (rows.double() / clip_norm * 2.0**mechanisms.GRID_BITS).trunc().to(torch.int64)


def test_the_check_finds_a_missing_clip_and_a_wrong_divisor(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    wrong = make(stripes, mechanism_for, releases=100)
    wrong.gradients.expected *= 0.8
    assert not is_standard_normal(noise_of(wrong, 20))
    unclipped = make(stripes, mechanism_for, releases=100)
    monkeypatch.setattr(mechanisms, "clip_to_grid", without_clip)
    with torch.no_grad():
        unclipped.discriminator.head.weight.mul_(20)  # longer gradients than CLIP
    assert not is_standard_normal(noise_of(unclipped, 20))


def coins_are_fair(critic: DPSGDGAN, rate: float, draws: int = 400) -> bool:
    """Whether all records take part at this rate, independently of each other and of the time."""
    taken = np.zeros((draws, len(critic.images)))
    for draw in range(draws):
        taken[draw, drawn(critic, draw // 2, draw % 2)] = 1
    spread = math.sqrt(rate * (1 - rate))
    scaled = (taken - rate) / spread
    total, by_record, by_draw = scaled.sum() / math.sqrt(scaled.size), scaled.sum(0), scaled.sum(1)
    tests = [
        2 * stats.norm.sf(abs(total)),
        stats.chi2.sf((by_record**2).sum() / draws, len(by_record)),
        stats.chi2.sf((by_draw**2).sum() / scaled.shape[1], draws),
        stats.chi2.cdf((by_draw**2).sum() / scaled.shape[1], draws),  # too even: a fixed batch size
    ]
    return min(tests) > 1e-4


def test_records_take_part_by_coins_of_the_accounted_rate(mechanism_for, stripes: ImageData) -> None:
    critic = make(stripes, mechanism_for)
    assert coins_are_fair(critic, 24 / 96)
    assert not coins_are_fair(critic, 0.27)
    assert not coins_are_fair(critic, 0.23)
    rng = np.random.default_rng(0)
    critic.gradients.draw = lambda name: rng.permutation(96)[:24]  # type: ignore[method-assign]
    assert not coins_are_fair(critic, 24 / 96)  # a batch of fixed size


def test_coins_are_secret_weights_public(mechanism_for, stripes: ImageData) -> None:
    ours = make(stripes, mechanism_for)
    other_seed, other_key = make(stripes, mechanism_for, public=1), make(stripes, mechanism_for, secret=4)

    def coins(critic: DPSGDGAN) -> list[list[int]]:
        return [drawn(critic, step, update).tolist() for step in range(4) for update in range(3)]

    assert coins(ours) == coins(other_seed) != coins(other_key)
    assert len({tuple(draw) for draw in coins(ours)}) == 12  # fresh in every step and update
    assert same(ours.state(), other_key.state())
    assert not same(ours.state(), other_seed.state())


def test_an_empty_batch_still_releases_noise(mechanism_for, stripes: ImageData) -> None:
    critic = make(stripes, mechanism_for)
    critic.gradients.draw = lambda name: np.empty(0, np.int64)  # type: ignore[method-assign]
    released = watch(critic)
    critic.learn(0, FAKES)
    assert len(released) == len(critic.gradients.mechanism.ledger.entries) == 2
    assert is_standard_normal(np.concatenate([sums for _, sums in released]) / (1.5 * CLIP))
    assert critic.metrics()["participants"] == 0


def steepened(critic: DPSGDGAN) -> DPSGDGAN:
    """With gradients much longer than CLIP."""
    with torch.no_grad():
        for weight in critic.discriminator.parameters():
            weight.mul_(4)
    return critic


@pytest.mark.parametrize("pairs", [False, True])
def test_replacing_a_record_moves_a_release_by_at_most_2c(
    mechanism_for, stripes: ImageData, monkeypatch, pairs: bool
) -> None:
    """Same key, so same coins, and hardly any noise; the discriminators are the same in the first update."""
    record = 17

    def moved() -> list[float]:
        both = stripes, changed_in_one_record(stripes, record)
        pair = [steepened(make(data, mechanism_for, pairs=pairs, noise_multiplier=1e-9)) for data in both]
        distances = []
        for update in range(12):
            sums = []
            for critic in pair:
                critic.descend = lambda gradient: None  # type: ignore[method-assign]
                seen = watch(critic)
                critic._update(0, update, FAKES)
                sums.append(seen[-1][1])
            takes_part = record in drawn(pair[0], 0, update)
            distances.append(np.linalg.norm(sums[0] - sums[1]) if takes_part else 0.0)
            assert takes_part or np.array_equal(sums[0], sums[1])
        return distances

    found = moved()
    assert 0 < max(found) <= 2 * CLIP * (1 + 1e-6)
    assert max(found) > 1.2 * CLIP  # nearly opposite gradients: the bound is needed
    monkeypatch.setattr(mechanisms, "clip_to_grid", without_clip)
    assert max(moved()) > 2 * CLIP


class Leaky(DPSGDGAN):
    """Scales its step by the records' own loss: something private that does not pass the mechanism."""

    def descend(self, gradient: torch.Tensor) -> None:
        loss = cross_entropy(self.discriminator(*self.records(np.arange(96))), real=True).mean().detach()
        super().descend(gradient * loss)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(("kind", "tight"), [(DPSGDGAN, True), (Leaky, False)])
def test_with_the_releases_replayed_one_record_changes_nothing(
    mechanism_for, stripes: ImageData, kind: type[DPSGDGAN], tight: bool, pairs: bool, monkeypatch
) -> None:
    """Discriminator, optimizer, updates a step and the generator's gradient are made of releases and fakes alone.

    The second run has another record 17 and other coins: neither may matter.
    """
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 2)
    pair = []
    for secret, data in enumerate((stripes, changed_in_one_record(stripes, 17))):
        critic = make(data, mechanism_for, public=2, secret=secret, raise_below=0.9, releases=30, pairs=pairs)
        critic.__class__ = kind
        pair.append(critic)
    first, second = pair
    released = watch(first)
    queue: list[np.ndarray] = []
    second.gradients.mechanism.answer = lambda name, blocks, **shape: Answer(sums=queue.pop(0), counts=None)  # type: ignore[method-assign]
    fake, labels = FAKES.fakes(10, "judged")
    for step in range(6):
        before = len(released)
        first.learn(step, FAKES)
        queue += [sums for _, sums in released[before:]]
        second.learn(step, FAKES)
        equal = same(first.state(), second.state())
        assert equal == torch.equal(first.upstream_gradient(fake, labels), second.upstream_gradient(fake, labels))
        if tight:
            assert equal
            assert not queue
    assert same(first.state(), second.state()) == tight
    assert first.updates > SETTINGS.updates  # the rule was at work


# The generator's side


def test_upstream_gradient_is_the_one_of_the_non_saturating_loss(mechanism_for, stripes: ImageData) -> None:
    critic = make(stripes, mechanism_for)
    fake, labels = FAKES.fakes(10, "judged")
    leaf = fake.clone().requires_grad_()
    probability = torch.sigmoid(critic.discriminator(leaf, critic.discriminator.codes(labels)))
    (-probability.log().mean() * 10).backward()
    found = critic.upstream_gradient(fake.clone().requires_grad_(), labels)
    torch.testing.assert_close(found, leaf.grad)
    assert not found.requires_grad


def test_fakes_are_fresh_in_every_update(mechanism_for, stripes: ImageData) -> None:
    asked = []

    class Counting(Fakes):
        def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append((count, *index))
            return super().fakes(count, *index)

    make(stripes, mechanism_for, raise_below=0.6).learn(1, Counting())  # type: ignore[arg-type]
    assert asked == [(24, "discriminator", 1, 0), (24, "discriminator", 1, 1), (24, "accuracy", 1)]


def say(critic: DPSGDGAN, *, real: bool) -> None:
    """A discriminator that calls everything real, or nothing."""
    with torch.no_grad():
        for parameter in critic.discriminator.parameters():
            parameter.zero_()
        critic.discriminator.head.bias.fill_(1.0 if real else -1.0)


def test_updates_are_raised_where_fakes_pass_for_real(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    """The rule of Bie et al. 2023: a moving average of the accuracy, a ladder, a time of grace on each rung."""
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 5)
    critic = make(stripes, mechanism_for, updates=1, releases=10_000, raise_below=0.6)
    critic._update = lambda step, update, generator: None  # type: ignore[method-assign]
    say(critic, real=True)
    rungs = []
    for step in range(20):
        critic.learn(step, FAKES)
        rungs.append(critic.updates)
    assert rungs == [1] * 4 + [2] * 5 + [5] * 5 + [10] * 5 + [20]
    say(critic, real=False)
    accuracy = 0.0
    for step in range(20, 150):
        critic.learn(step, FAKES)
        accuracy = 0.99 * accuracy + 0.01
        if accuracy > 0.6:
            top = critic.updates
            break
    for step in range(150, 170):
        critic.learn(step, FAKES)
    assert critic.updates == top  # nobody is called back
    assert critic.metrics()["accuracy_on_fakes"] > 0.6


def test_updates_stay_without_the_rule(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 1)
    critic = make(stripes, mechanism_for, releases=40)
    say(critic, real=True)
    for step in range(5):
        critic.learn(step, FAKES)
    assert critic.updates == SETTINGS.updates
    assert critic.done == 10


def test_never_more_releases_than_planned(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 1)
    critic = make(stripes, mechanism_for, releases=13, updates=1, raise_below=0.999)
    steps = 0
    while not critic.finished:
        critic.learn(steps, FAKES)
        steps += 1
    assert steps <= critic.settings.most_steps
    assert critic.updates > 1
    critic.learn(steps, FAKES)
    assert critic.done == len(critic.gradients.mechanism.ledger.entries) == 13
    ledger = critic.gradients.mechanism.ledger.total()
    spent = Accountant().epsilon(ledger, 1e-5)
    assert spent == pytest.approx(Accountant().epsilon(critic.settings.events(96), 1e-5), rel=1e-6)


@pytest.mark.parametrize("releases", [1, 7, 12])
def test_all_releases_are_made_at_the_latest_after_most_steps(mechanism_for, stripes, releases: int) -> None:
    critic = make(stripes, mechanism_for, releases=releases)
    for step in range(critic.settings.most_steps):
        assert not critic.finished
        critic.learn(step, FAKES)
    assert critic.finished
    assert critic.done == releases


# The run


def test_resuming_after_every_step_is_the_straight_run(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    """The same weights and the same ledger: a step that is played again is the same release again."""
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 2)
    settings = dataclasses.replace(SETTINGS, updates=1, raise_below=0.9, releases=20)
    streams = Streams(bytes(32), "plan")

    def fresh(folder: Path) -> tuple[DPSGDGAN, Ledger]:
        folder.mkdir(exist_ok=True)
        ledger = Ledger(folder / "ledger", observer="public", context="plan", journal=folder / "journal")
        mechanism = GaussianMechanism(
            contribution=settings.contribution, event=settings.event(96), ledger=ledger, streams=streams
        )
        critic = DPSGDGAN(
            settings, mechanism, image_size=8, channels=1, classes=3,
            public=Streams.public(0), device=CPU,
        )  # fmt: skip
        critic.prepare(stripes)
        return critic, ledger

    straight, written = fresh(tmp_path / "straight")
    states = [copied(straight.state())]
    for step in range(6):
        straight.learn(step, FAKES)
        states.append(copied(straight.state()))
    for step in range(6):
        stopped, ledger = fresh(tmp_path / "stopped")
        if step:
            stopped.load_state(states[step])
        stopped.learn(step, FAKES)
        assert same(stopped.state(), states[step + 1])
        again, ledger = fresh(tmp_path / "stopped")  # died before it was saved
        if step:
            again.load_state(states[step])
        again.learn(step, FAKES)
        assert same(again.state(), states[step + 1])
    assert ledger.path.read_bytes() == written.path.read_bytes()
    assert len({tuple(state["counts"].tolist()) for state in states}) == 7


def test_state_holds_all_that_learning_changes(mechanism_for, stripes: ImageData) -> None:
    one, other = make(stripes, mechanism_for, raise_below=0.5), make(stripes, mechanism_for, raise_below=0.5)
    for step in range(3):
        one.learn(step, FAKES)
    saved = copied(one.state())
    other.load_state(saved)
    assert same(one.state(), other.state())
    for critic in (one, other):
        critic.learn(3, FAKES)
    assert same(one.state(), other.state())
    assert not same(saved, one.state())
    assert saved["counts"].tolist() == [6, 2, 3]
    with pytest.raises(KeyError):
        other.load_state({name: value for name, value in saved.items() if name != "counts"})


def test_the_private_log_has_the_gradient_norms_before_and_after_clipping(mechanism_for, stripes: ImageData) -> None:
    """The other half of the paper's figures 2 and A.1."""
    critic = make(stripes, mechanism_for, updates=1)
    members = drawn(critic, 0, 0)
    norms = critic.rows(*critic.records(members), real=True).norm(dim=1).numpy()
    critic.learn(0, FAKES)
    found = critic.metrics()
    assert found["participants"] == len(members)
    np.testing.assert_allclose(found["norm_before"], np.quantile(norms, QUANTILES), rtol=1e-5)
    np.testing.assert_allclose(found["norm_after"], np.quantile(norms.clip(max=CLIP), QUANTILES), rtol=1e-5)
    assert min(norms) < max(norms)


def test_labels_are_total_and_may_be_absent(mechanism_for, stripes: ImageData) -> None:
    labels = stripes.labels.copy()
    labels[17], labels[18] = -7, 10**6
    one, other = make(stripes, mechanism_for), make(dataclasses.replace(stripes, labels=labels), mechanism_for)
    rows = [critic.rows(*critic.records(np.arange(96)), real=True) for critic in (one, other)]
    different = np.flatnonzero((rows[0] != rows[1]).any(dim=1).numpy())
    assert set(different) <= {17, 18}
    unlabelled = make(dataclasses.replace(stripes, labels=None, classes=1), mechanism_for)
    unlabelled.learn(0, Fakes(classes=1))  # type: ignore[arg-type]


def test_persons_are_refused(mechanism_for) -> None:
    data = dataclasses.replace(tiny_images(96), persons=np.arange(96) // 4)
    with pytest.raises(PrivacyError, match="persons"):
        make(data, mechanism_for)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1])
def test_an_accuracy_is_a_share(value: float) -> None:
    with pytest.raises(GswganError, match="raise_below"):
        dataclasses.replace(SETTINGS, raise_below=value)


def stripes_generator(steps: int, learning_rate: float) -> Generator:
    return Generator(
        GeneratorSettings(architecture="mlp", width=64),
        OptimizerSettings(learning_rate=learning_rate, betas=(0.5, 0.9), average=0.9),
        classes=3, channels=1, image_size=8, updates=steps, streams=Streams.public(0), device=CPU,
    )  # fmt: skip


def distance_of_class_means(generator: Generator, data: ImageData) -> float:
    fake, labels = generator.fakes(300, "test")
    real = torch.from_numpy(data.images) / 255
    truth = torch.from_numpy(data.labels)
    return float(sum((fake[labels == k].mean(0) - real[truth == k].mean(0)).norm() for k in range(3)))


def test_the_generator_learns_through_it(mechanism_for) -> None:
    """In the one training loop, to the last planned release; and not at all where the noise drowns the records."""
    data = tiny_images(960)
    reached = []
    for noise in (0.5, 300.0):
        changes = {"noise_multiplier": noise, "clip_norm": 1.0, "learning_batch": 96, "learning_rate": 5e-3}
        critic = make(data, mechanism_for, releases=120, updates=1, width=16, **changes)
        generator = stripes_generator(120, 5e-3)
        before = distance_of_class_means(generator, data)
        plan = SimpleNamespace(training=SimpleNamespace(steps=critic.settings.most_steps, batch_size=60))
        train(plan, critic, generator, after_step=lambda done, critic=critic: critic.finished)  # type: ignore[arg-type]
        assert critic.done == 120
        reached.append(distance_of_class_means(generator, data) / before)
    assert reached[0] < 0.7
    assert reached[1] > 1


@pytest.mark.gpu
def test_rows_on_a_gpu_do_not_depend_on_place_and_repeat() -> None:
    device = torch.device("cuda")
    data = tiny_images(300, side=28)
    settings = dataclasses.replace(SETTINGS, width=32, learning_batch=64)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger", observer="public", context="plan")
        mechanism = GaussianMechanism(
            contribution=settings.contribution,
            event=settings.event(300),
            ledger=ledger,
            streams=key_of(0),
        )
        critic = DPSGDGAN(
            settings, mechanism, image_size=28, channels=1, classes=3,
            public=Streams.public(0), device=device,
        )  # fmt: skip
        critic.prepare(data)
        check_places(critic, 300)
