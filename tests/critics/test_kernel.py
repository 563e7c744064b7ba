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
    distance,
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
    blocks = kernel._person_blocks(data, features) if by_person else kernel._record_blocks(data, features)
    slots, width = (1, data.classes * (features.width + 1)) if by_person else (data.classes, features.width)
    return mechanism._sum(blocks, slots, width).ravel().astype(np.float64) / 2**26


def test_features_have_norm_at_most_one() -> None:
    features = RandomFeatures(SETTINGS, 64, CPU)
    images = torch.rand(200, 1, 8, 8)
    assert torch.allclose(features(images).norm(dim=1), torch.ones(200), atol=1e-6)
    integers = clip_to_grid(features(images), 1.0).to(torch.float64)
    assert (integers.norm(dim=1) <= 2.0**26).all()


def test_features_approximate_the_gaussian_kernel() -> None:
    features = RandomFeatures(KernelSettings(features=16384, length_scales=(2.0,)), 64, CPU)
    x, y = torch.rand(2, 50, 1, 8, 8)
    expected = torch.exp(-(x - y).flatten(1).square().sum(1) / (2 * 2.0**2))
    assert torch.allclose((features(x) * features(y)).sum(1), expected, atol=0.05)


def test_parts_of_the_features_are_shares_of_the_whole() -> None:
    features, x = RandomFeatures(SETTINGS, 64, CPU), torch.rand(3, 1, 8, 8)
    whole = features(x).unflatten(1, (2, -1))
    assert torch.equal(features(x, slice(8, 20)).unflatten(1, (2, -1)), whole[:, :, 8:20])


def test_features_and_length_scale_do_not_depend_on_the_data() -> None:
    """By construction: the features are given numbers, never images. Checked on the signature and the result."""
    names = set(inspect.signature(RandomFeatures.__init__).parameters)
    assert names == {"self", "settings", "pixels", "device"}
    first, second = RandomFeatures(SETTINGS, 64, CPU), RandomFeatures(SETTINGS, 64, CPU)
    assert torch.equal(first.frequencies, second.frequencies)
    for value in dataclasses.asdict(SETTINGS).values():
        assert isinstance(value, (int, tuple))
    # pixels are divided by a constant and nothing else: no mean, deviation or maximum of the data
    tree = ast.parse(inspect.getsource(kernel._pixels) + inspect.getsource(kernel._record_blocks))
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
    features = RandomFeatures(KernelSettings(features=16, length_scales=(0.3,)), 64, CPU)
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
    features = RandomFeatures(SETTINGS, 64, CPU)
    before = exact_sums(data, features, mechanism_for)
    images, labels = data.images.copy(), data.labels.copy()
    images[10:20], labels[10:20] = rng.integers(0, 256, (10, 1, 8, 8)), 2
    after = exact_sums(dataclasses.replace(data, images=images, labels=labels), features, mechanism_for)
    moved = np.linalg.norm(after - before)
    assert 0.5 < moved <= 2.0  # in units of the clip norm; ten records at once
    # without averaging by the person's own number the same change is far larger
    raw = sum((rows * 10).flatten() for rows, _ in kernel._person_blocks(data, features))
    other = dataclasses.replace(data, images=images, labels=labels)
    raw_after = sum((rows * 10).flatten() for rows, _ in kernel._person_blocks(other, features))
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
    (table, _), *_ = kernel._person_blocks(data, RandomFeatures(SETTINGS, 64, CPU))
    assert torch.isfinite(table).all()
    assert table.view(3, -1)[:, -1].sum() == pytest.approx(4 / 6)


def test_distance_is_unbiased_and_the_plain_square_is_not() -> None:
    torch.manual_seed(0)
    features = RandomFeatures(KernelSettings(features=256, length_scales=(1.0,)), 64, CPU)
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


def test_distance_sums_over_classes_and_skips_absent_ones() -> None:
    features = torch.rand(7, 5)
    labels = torch.tensor([0, 0, 0, 2, 2, 2, 2])
    targets = torch.rand(4, 5)
    apart = distance(features[:3], labels[:3] * 0, targets[:1]) + distance(features[3:], labels[3:] * 0, targets[2:3])
    assert torch.allclose(distance(features, labels, targets), apart)


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
    features = RandomFeatures(SETTINGS, 64, CPU)
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
    features = RandomFeatures(SETTINGS, 64, CPU)
    released = embed(stripes, features, mechanism_for(Contribution(clip_norm=1.0, counts=True), noise_std=1e-9))
    x = torch.from_numpy(stripes.images).float() / 255
    for label in range(3):
        expected = features(x[stripes.labels == label]).mean(0)
        assert torch.allclose(released.means()[label], expected, atol=1e-5)
    people = dataclasses.replace(stripes, persons=np.arange(96) // 2)
    by_person = embed(people, features, mechanism_for(Contribution(clip_norm=10.0), noise_std=1e-9))
    assert torch.allclose(by_person.means(), released.means(), atol=1e-5)  # people with equally many records


def test_the_gradient_is_that_of_the_distance(mechanism_for, tmp_path: Path, stripes: ImageData) -> None:
    features = RandomFeatures(SETTINGS, 64, CPU)
    critic = KernelCritic(features, mechanism_for(Contribution(clip_norm=1.0, counts=True)), tmp_path / "e")
    critic.prepare(stripes)
    fake, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2])
    gradient = critic.upstream_gradient(fake, labels) / 6
    step = torch.zeros_like(fake)
    step[2, 0, 3, 4] = 1e-2
    targets = critic._targets.flatten(1)
    change = distance(features(fake + step), labels, targets) - distance(features(fake - step), labels, targets)
    assert float(change) / 2e-2 == pytest.approx(float(gradient[2, 0, 3, 4]), rel=0.02)
