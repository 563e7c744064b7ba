"""Gradients of single records in the DP-SGD GAN: right, bit for bit alone, clipped, with the noise."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from dp_sgd_critics import CLIP, FAKES, SETTINGS, Fakes, drawn, make, steepened, watch
from scipy import stats

from conftest import changed_in_one_record, tiny_images
from gswgan.critics import dp_sgd
from gswgan.critics.discriminator import Discriminator, cross_entropy
from gswgan.critics.dp_sgd_gan import DPSGDGAN
from gswgan.critics.ensemble.ensemble import QUANTILES
from gswgan.data import ImageData, make_image_data
from gswgan.privacy import mechanism as mechanisms

# What it costs


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
    some = [np.sort(rng.permutation(n)[: rng.integers(2, n)]) for _ in range(8)]
    for members in (everyone, everyone[1:], everyone[::-1], *some):
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
    entries = critic.gradients.mechanism.ledger.entries
    assert [entry.name for entry in entries[:2]] == ["step 0 update 0", "step 0 update 1"]
    assert {entry.event for entry in entries} == {SETTINGS.event(96)}


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


def test_an_empty_batch_still_releases_noise(mechanism_for, stripes: ImageData) -> None:
    critic = make(stripes, mechanism_for)
    critic.gradients.draw = lambda name: np.empty(0, np.int64)  # type: ignore[method-assign]
    released = watch(critic)
    critic.learn(0, FAKES)
    assert len(released) == len(critic.gradients.mechanism.ledger.entries) == 2
    assert is_standard_normal(np.concatenate([sums for _, sums in released]) / (1.5 * CLIP))
    assert critic.metrics()["participants"] == 0


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


@pytest.mark.gpu
def test_rows_on_a_gpu_do_not_depend_on_place_and_repeat(mechanism_for) -> None:
    data = tiny_images(300, side=28)
    check_places(make(data, mechanism_for, device=torch.device("cuda"), width=32, learning_batch=64), 300)
