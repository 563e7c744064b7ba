from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan.critics.kernel import embedding
from gswgan.critics.kernel.embedding import Embedding, embed
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures, products
from gswgan.data import ImageData
from gswgan.privacy import Contribution

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(1.5,))


def exact_sums(data: ImageData, features: RandomFeatures, mechanism_for) -> np.ndarray:
    """The sums before noise, as one vector in units of one clip norm: what neighbours move."""
    by_person = data.persons is not None
    clip = data.classes**-0.5 if by_person else 1.0
    labelled = data.labels is not None
    mechanism = mechanism_for(Contribution(clip_norm=clip, counts=labelled and not by_person))
    blocks = embedding.person_blocks(data, features, 0.5) if by_person else embedding.record_blocks(data, features)
    slots, width = (1, data.classes * (features.width + 1)) if by_person else (data.classes, features.width)
    return mechanism._sum(blocks, slots, width).ravel().astype(np.float64) / 2**26


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
    raw = sum((rows * 10).flatten() for rows, _ in embedding.person_blocks(data, features, 0.5))
    other = dataclasses.replace(data, images=images, labels=labels)
    raw_after = sum((rows * 10).flatten() for rows, _ in embedding.person_blocks(other, features, 0.5))
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
    (table, _), *_ = embedding.person_blocks(data, RandomFeatures(SETTINGS, 1, 8, CPU), 0.5)
    assert torch.isfinite(table).all()
    assert table.view(3, -1)[:, -1].sum() == pytest.approx(0.5)  # the mean of the four others


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
    assert embedding.count_weight(539, 10, 0.455) == 0.3  # MNIST's writers at epsilon 10, delta 1e-4
    assert embedding.count_weight(12, 3, 0.5) == 1.0  # few persons: as if nothing were to be saved
    weight = embedding.count_weight(60, 36, 0.455)  # FEMNIST's
    assert 0.3 < weight < 1.0
    length = np.sqrt(36) * np.hypot(weight, np.sqrt(0.4)) / 36  # of a person with records of all classes alike
    count = 60 * weight / 36 / length  # of a class, in clip norms, when everybody is clipped
    assert count / 0.455 == pytest.approx(3 * embedding.RARE)


def test_the_release_does_not_depend_on_the_precision_of_products(
    mechanism_for, stripes: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the process has set for TF32, the release is computed without it, and the setting is put back."""
    seen = []
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    real = type(features).__call__
    monkeypatch.setattr(
        type(features), "__call__",
        lambda self, images: (seen.extend(flags()), real(self, images))[1],
    )  # fmt: skip
    with products(tf32=True):
        embed(stripes, features, mechanism_for(Contribution(clip_norm=1.0, counts=True)))
        assert flags() == (True, True)
    assert seen
    assert not any(seen)


def flags() -> tuple[bool, bool]:
    """Whether products and convolutions may be of TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
