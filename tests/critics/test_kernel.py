from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan.critics import kernel
from gswgan.critics.kernel import (
    Embedding,
    KernelCritic,
    KernelSettings,
    RandomFeatures,
    embed,
)
from gswgan.data import ImageData
from gswgan.privacy import Contribution
from gswgan.privacy.mechanism import clip_to_grid

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(1.5,))


def exact_sums(data: ImageData, features: RandomFeatures, mechanism_for) -> np.ndarray:
    """The sums before noise, as one vector in units of one clip norm: what neighbours move."""
    by_person = data.persons is not None
    clip = data.classes**-0.5 if by_person else 1.0
    labelled = data.labels is not None
    mechanism = mechanism_for(Contribution(clip_norm=clip, counts=labelled and not by_person))
    blocks = kernel._person_blocks(data, features, 0.5) if by_person else kernel.record_blocks(data, features)
    slots, width = (1, data.classes * (features.width + 1)) if by_person else (data.classes, features.width)
    return mechanism._sum(blocks, slots, width).ravel().astype(np.float64) / 2**26


def test_features_have_norm_at_most_one() -> None:
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    images = torch.rand(200, 1, 8, 8)
    assert torch.allclose(features(images).norm(dim=1), torch.ones(200), atol=1e-6)
    integers = clip_to_grid(features(images), 1.0).to(torch.float64)
    assert (integers.norm(dim=1) <= 2.0**26).all()


def test_features_approximate_the_gaussian_kernel() -> None:
    features = RandomFeatures(KernelSettings(features=16384, length_scales=(2.0,)), 1, 8, CPU)
    x, y = torch.rand(2, 50, 1, 8, 8)
    expected = torch.exp(-(x - y).flatten(1).square().sum(1) / (2 * 2.0**2))
    assert torch.allclose((features(x) * features(y)).sum(1), expected, atol=0.05)


def test_windows_look_at_neighbourhoods() -> None:
    settings = KernelSettings(features=8000, length_scales=(2.0, 0.5), windows=(0.0, 1.5))
    frequencies = RandomFeatures(settings, 3, 16, CPU).frequencies.unflatten(0, (3, 16, 16))
    power = frequencies.square()
    whole, local = power[..., 0::2], power[..., 1::2]
    assert whole.mean() == pytest.approx(1 / 4, rel=0.02)
    assert torch.allclose(whole.mean(dim=(0, 3)), torch.full((16, 16), 0.25), rtol=0.2)  # everywhere alike
    assert torch.allclose(local.mean(dim=(0, 3)), local.mean().expand(16, 16), rtol=0.5)  # the edges too
    # one of them: as wide as its window. Of N(0, 1) x exp(-r^2 / 2 s^2) the power has the variance s^2 / 2 an axis
    place = torch.arange(16.0)
    shares = local.sum(dim=0) / local.sum(dim=(0, 1, 2))
    rows = shares.sum(dim=1)
    centre = (rows * place[:, None]).sum(0)
    variance = (rows * (place[:, None] - centre) ** 2).sum(0)
    inside = (centre > 5) & (centre < 10)
    assert variance[inside].mean() == pytest.approx(1.5**2 / 2, rel=0.15)


def test_features_and_length_scale_do_not_depend_on_the_data() -> None:
    """By construction: the features are given numbers, never images. Checked on the signature and the result."""
    names = set(inspect.signature(RandomFeatures.__init__).parameters)
    assert names == {"self", "settings", "channels", "side", "device"}
    first, second = RandomFeatures(SETTINGS, 1, 8, CPU), RandomFeatures(SETTINGS, 1, 8, CPU)
    assert torch.equal(first.frequencies, second.frequencies)
    for value in dataclasses.asdict(SETTINGS).values():
        assert isinstance(value, (int, tuple))
    # pixels are divided by a constant and nothing else: no mean, deviation or maximum of the data
    tree = ast.parse(inspect.getsource(kernel._pixels) + inspect.getsource(kernel.record_blocks))
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not calls & {"mean", "std", "max", "min", "amax", "amin", "median", "quantile", "unique", "norm"}
    x = np.full((1, 1, 8, 8), 51, np.uint8)
    assert torch.allclose(kernel._pixels(x, CPU), torch.full((1, 1, 8, 8), 0.2))


@pytest.mark.parametrize("labelled", [True, False])
def test_replacing_one_record_moves_the_sums_by_at_most_two(mechanism_for, labelled: bool) -> None:
    rng = np.random.default_rng(1)
    data = tiny_images(40)
    if not labelled:
        data = dataclasses.replace(data, labels=None, classes=1, class_names=("all",))
    features = RandomFeatures(KernelSettings(features=16, length_scales=(0.3,)), 1, 8, CPU)
    before = exact_sums(data, features, mechanism_for)
    moved = []
    for trial in range(60):
        images = data.images.copy()
        images[7] = rng.integers(0, 256, (1, 8, 8)) if trial % 2 else rng.integers(0, 2, (1, 8, 8)) * 255
        labels = None
        if data.labels is not None:
            labels = data.labels.copy()
            labels[7] = rng.integers(0, 3)
        after = exact_sums(dataclasses.replace(data, images=images, labels=labels), features, mechanism_for)
        moved.append(np.linalg.norm(after - before))
    assert max(moved) <= 2.0
    if labelled:  # attained when the class changes: a smaller claim would be refuted here
        assert max(moved) > 1.999


def test_person_sums_move_by_at_most_two_clip_norms(mechanism_for) -> None:
    rng = np.random.default_rng(2)
    data = dataclasses.replace(tiny_images(60), persons=np.repeat(np.arange(6), 10))
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    before = exact_sums(data, features, mechanism_for)
    images, labels = data.images.copy(), data.labels.copy()
    images[10:20], labels[10:20] = rng.integers(0, 256, (10, 1, 8, 8)), 2
    after = exact_sums(dataclasses.replace(data, images=images, labels=labels), features, mechanism_for)
    moved = np.linalg.norm(after - before)
    assert 0.5 < moved <= 2.0  # in units of the clip norm; ten records at once
    # without averaging by the person's own number the same change is far larger
    raw = sum((rows * 10).flatten() for rows, _ in kernel._person_blocks(data, features, 0.5))
    other = dataclasses.replace(data, images=images, labels=labels)
    raw_after = sum((rows * 10).flatten() for rows, _ in kernel._person_blocks(other, features, 0.5))
    assert float((raw - raw_after).norm()) > 2.0


def test_infinite_pixels_and_invalid_labels_do_not_raise(mechanism_for) -> None:
    mechanism = mechanism_for(Contribution(clip_norm=1.0, counts=True))
    rows = torch.rand(6, 1, 4)
    rows[0, 0, 0], rows[1, 0, 1], rows[2, 0, 2] = torch.inf, torch.nan, 3e38
    labels = torch.tensor([0, 1, 2, -1, 3, 10**12])
    total = mechanism._sum([(rows, labels)], 3, 4)
    assert np.array_equal(total[:2, :4], np.zeros((2, 4)))  # non-finite rows count, and add nothing else
    assert np.array_equal(total[:, 4], [2**26] * 3)  # invalid labels do not even count
    assert np.linalg.norm(total[2, :4].astype(float)) <= 2.0**26
    # a person's table with invalid labels
    data = dataclasses.replace(tiny_images(6), persons=np.zeros(6, np.int64), labels=np.array([0, -5, 99, 1, 2, 0]))
    (table, _), *_ = kernel._person_blocks(data, RandomFeatures(SETTINGS, 1, 8, CPU), 0.5)
    assert torch.isfinite(table).all()
    assert table.view(3, -1)[:, -1].sum() == pytest.approx(0.5 * 4 / 6)


def distance(features: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared distance of the class means to the targets, up to a constant, unbiased (pairs of different fakes)."""
    total = torch.zeros((), dtype=features.dtype)
    for label in labels.unique():
        mine = features[labels == label]
        count, mean = len(mine), mine.mean(0)
        square = (count * mean.square().sum() - mine.square().sum(1).mean()) / (count - 1)
        total = total + square - 2 * mean @ targets[label]
    return total


def test_distance_is_unbiased_and_the_plain_square_is_not() -> None:
    torch.manual_seed(0)
    features = RandomFeatures(KernelSettings(features=256, length_scales=(1.0,)), 1, 8, CPU)
    pool = features(torch.rand(4000, 1, 8, 8)).to(torch.float64)
    target = torch.rand(1, pool.shape[1], dtype=torch.float64) * 0.1
    truth = float(pool.mean(0).square().sum() - 2 * (pool.mean(0) * target[0]).sum())
    draws, plain = [], []
    for _ in range(4000):
        batch = pool[torch.randint(0, len(pool), (4,))]
        draws.append(float(distance(batch, torch.zeros(4, dtype=torch.int64), target)))
        mean = batch.mean(0)
        plain.append(float(mean.square().sum() - 2 * (mean * target[0]).sum()))
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - truth) < 4 * error
    assert abs(np.mean(plain) - truth) > 10 * error  # the biased one is found by the same check


def test_rare_classes_are_left_out_never_divided_by(tmp_path: Path) -> None:
    counts = torch.tensor([100.0, 4.9, -3.0, 0.0, 5.1], dtype=torch.float64)
    released = Embedding(sums=torch.ones(5, 8, dtype=torch.float64), counts=counts, noise_std=1.0, count_noise_std=1.0)
    assert released.kept.tolist() == [0, 4]
    means = released.means()
    assert torch.isfinite(means).all()
    assert means[1:4].abs().sum() == 0
    assert means[0, 0] == pytest.approx(0.01)
    path = tmp_path / "embedding.safetensors"
    released.save(path)
    again = Embedding.load(path)
    assert torch.equal(again.counts, counts)
    assert again.kept.tolist() == [0, 4]


def test_the_embedding_is_released_once_and_used_again(mechanism_for, tmp_path: Path, stripes: ImageData) -> None:
    mechanism = mechanism_for(Contribution(clip_norm=1.0, counts=True))
    path = tmp_path / "embedding.safetensors"
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    for _ in range(2):
        critic = KernelCritic(features, mechanism, path)
        critic.prepare(stripes)
    assert len(mechanism.ledger.entries) == 1
    without_data = KernelCritic(features, None, path)
    without_data.prepare(None)
    fake, labels = torch.rand(12, 1, 8, 8), torch.arange(12) % 3
    assert torch.equal(without_data.upstream_gradient(fake, labels), critic.upstream_gradient(fake, labels))
    assert len(mechanism.ledger.entries) == 1  # answering is free


def test_the_released_means_are_those_of_the_data(mechanism_for, stripes: ImageData) -> None:
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    released = embed(stripes, features, mechanism_for(Contribution(clip_norm=1.0, counts=True), noise_std=1e-9))
    x = torch.from_numpy(stripes.images).float() / 255
    for label in range(3):
        expected = features(x[stripes.labels == label]).mean(0)
        assert torch.allclose(released.means()[label], expected, atol=1e-5)
    people = dataclasses.replace(stripes, persons=np.arange(96) // 2)
    by_person = embed(people, features, mechanism_for(Contribution(clip_norm=10.0), noise_std=1e-9))
    assert torch.allclose(by_person.means(), released.means(), atol=1e-5)  # people with equally many records
    assert by_person.counts.sum() == pytest.approx(48, rel=1e-5)  # persons
    assert by_person.count_noise_std == pytest.approx(1e-9 / 0.3)  # with so little noise counts weigh the least


def test_counts_weigh_just_enough_to_be_told_from_the_noise() -> None:
    assert kernel.count_weight(539, 10, 0.455) == 0.3  # MNIST's writers at epsilon 10, delta 1e-4
    assert kernel.count_weight(12, 3, 0.5) == 1.0  # few persons: as if nothing were to be saved
    weight = kernel.count_weight(60, 36, 0.455)  # FEMNIST's
    assert 0.3 < weight < 1.0
    length = np.sqrt(36) * np.hypot(weight, np.sqrt(0.4)) / 36  # of a person with records of all classes alike
    count = 60 * weight / 36 / length  # of a class, in clip norms, when everybody is clipped
    assert count / 0.455 == pytest.approx(3 * kernel.RARE)


@pytest.fixture
def prepared(mechanism_for, tmp_path: Path, stripes: ImageData):
    def make(**options) -> KernelCritic:
        mechanism = mechanism_for(Contribution(clip_norm=1.0, counts=True))
        critic = KernelCritic(RandomFeatures(SETTINGS, 1, 8, CPU), mechanism, tmp_path / "e", **options)
        critic.prepare(stripes)
        return critic

    return make


def targets_of(critic: KernelCritic) -> torch.Tensor:
    return critic.embedding.means()


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 2, 2]])
def test_the_gradient_is_that_of_the_distance(prepared, labels: list[int]) -> None:
    """Written out, and unbiased: of the distance between different fakes; absent classes do no harm."""
    critic = prepared()
    fake, labels = torch.rand(6, 1, 8, 8, requires_grad=True), torch.tensor(labels)
    (expected,) = torch.autograd.grad(distance(critic.features(fake), labels, targets_of(critic)), fake)
    assert torch.allclose(critic.upstream_gradient(fake.detach(), labels) / 6, expected, rtol=1e-3, atol=1e-6)
    assert expected.abs().max() > 1e-3


def test_a_moving_mean_takes_the_noise_of_the_batch_away(prepared) -> None:
    """With memory the gradient of one fake hardly depends on the others, and it has the right mean."""
    torch.manual_seed(0)
    pool, labels = torch.rand(3000, 1, 8, 8), torch.arange(6) % 3
    probe = torch.rand(6, 1, 8, 8)
    found = {}
    for memory in (0.0, 0.95):
        critic, draws = prepared(memory=memory), []
        for step in range(400):
            batch = pool[torch.randint(0, 3000, (6,))]
            if step >= 100:
                state = {name: value.clone() for name, value in critic.state().items()}
                batch[0] = probe[0]
                draws.append(critic.upstream_gradient(batch, labels)[0].flatten())
                critic.load_state(state)
                batch[0] = pool[torch.randint(0, 3000, (1,))]
            critic.upstream_gradient(batch, labels)
        found[memory] = torch.stack(draws)
    spread = {memory: float(draws.std(0).norm()) for memory, draws in found.items()}
    assert spread[0.95] < spread[0.0] / 3
    apart = float((found[0.95].mean(0) - found[0.0].mean(0)).norm())
    assert apart < 0.3 * spread[0.0]
    # a wrong mean would be seen: the target alone, or a witness of the wrong sign, is far away
    assert float((found[0.95].mean(0) + found[0.0].mean(0)).norm()) > 1.5 * apart


def test_blocks_take_turns_and_remember_their_own(prepared) -> None:
    critic, whole = prepared(blocks=4, memory=0.9), prepared(memory=0.0)
    assert not critic.can_be_captured
    assert whole.can_be_captured
    fake, labels = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    total = torch.zeros_like(fake)
    for step in range(4):
        critic._part = critic._parts[step]
        total += critic.upstream_gradient(fake, labels)
    assert torch.allclose(total, whole.upstream_gradient(fake, labels), rtol=1e-3, atol=1e-5)


def test_the_moving_mean_survives_a_stop(prepared) -> None:
    one, other = prepared(memory=0.9), prepared(memory=0.9)
    labels = torch.arange(6) % 3
    for _ in range(5):
        one.upstream_gradient(torch.rand(6, 1, 8, 8), labels)
    other.load_state({name: value.clone() for name, value in one.state().items()})
    fake = torch.rand(6, 1, 8, 8)
    assert torch.equal(one.upstream_gradient(fake, labels), other.upstream_gradient(fake, labels))
    assert one.metrics() == other.metrics()
    assert one.metrics()["distance"] > 0


def test_answers_are_smoothed_and_nothing_else_is(prepared) -> None:
    plain, smooth = prepared(), prepared(smoothing=0.8)
    fake, labels = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    sharp, soft = plain.upstream_gradient(fake, labels), smooth.upstream_gradient(fake, labels)
    blur = kernel.gaussian_blur(8, 0.8)
    assert torch.allclose(soft, blur @ sharp @ blur.T, atol=1e-6)
    assert not torch.allclose(soft, sharp, rtol=0.1)
    assert blur[4].sum() == pytest.approx(1, abs=1e-3)
    assert torch.equal(blur, blur.T)
    assert blur[4, 5] / blur[4, 4] == pytest.approx(np.exp(-1 / (2 * 0.8**2)), rel=1e-5)
    assert plain.metrics() == smooth.metrics()


def test_a_block_remembers_as_long_as_the_whole(prepared) -> None:
    """Seen once in four steps, it keeps the fourth power: the same memory in steps."""
    critic, labels = prepared(blocks=4, memory=0.9), torch.arange(6) % 3
    first, later = torch.rand(2, 6, 1, 8, 8)
    for step in range(400):
        critic._part = critic._parts[step % 4]
        critic.upstream_gradient(first, labels)
    before = critic.state()["means"].clone()
    for step in range(4):
        critic._part = critic._parts[step]
        critic.upstream_gradient(later, labels)
    after, there = critic.state()["means"], critic.features(later)
    goal = torch.stack([there[labels == label].mean(0) for label in range(3)]).unflatten(1, (2, -1)).transpose(0, 1)
    assert torch.allclose(after - before, (1 - 0.9**4) * (goal - before), atol=1e-5)


def test_the_release_does_not_depend_on_the_precision_of_products(
    mechanism_for, stripes: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the process has set for TF32, the release is computed without it, and the setting is put back."""
    seen = []
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    real = type(features).__call__
    monkeypatch.setattr(
        type(features), "__call__",
        lambda self, images: (seen.append(torch.backends.cuda.matmul.allow_tf32), real(self, images))[1],
    )  # fmt: skip
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        embed(stripes, features, mechanism_for(Contribution(clip_norm=1.0, counts=True)))
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert seen
    assert not any(seen)
