from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan import load_data
from gswgan.data import ImageData, make_image_data
from gswgan.errors import DataError, RunError
from gswgan.evaluation import reference_classifier as module
from gswgan.evaluation.inception_score import inception_score
from gswgan.evaluation.reference_classifier import (
    ReferenceClassifier,
    cached_reference_classifier,
    train_reference_classifier,
)


@pytest.fixture(scope="module")
def classifier() -> ReferenceClassifier:
    return train_reference_classifier(tiny_images(240), epochs=1)


def corners(n: int, *, seed: int) -> ImageData:
    """A bright patch in one of three corners: a class that shifts do not change."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 100, (n, 8, 8)), np.arange(n) % 3
    for image, label in zip(images, labels, strict=True):
        row, column = ((0, 0), (0, 5), (5, 0))[label]
        image[row : row + 3, column : column + 3] += 150
    return make_image_data(images.astype(np.uint8), labels, classes=3)


def test_learns_the_digits_in_seconds() -> None:
    """The whole recipe reaches 0.99; a third of it shows that it is on the way, sure of itself and of all classes."""
    test = load_data("digits", split="test")
    found = train_reference_classifier(load_data("digits"), epochs=10)
    assert found.accuracy(test.images, test.labels) > 0.95
    assert inception_score(found.probabilities(test.images))[0] > 7.5
    noise = np.random.default_rng(0).integers(0, 256, (300, 1, 8, 8), dtype=np.uint8)
    assert inception_score(found.probabilities(noise))[0] < 6


def test_shuffled_labels_teach_nothing() -> None:
    data, test = corners(240, seed=0), corners(90, seed=1)
    shuffled = dataclasses.replace(data, labels=np.random.default_rng(0).permutation(data.labels))
    assert train_reference_classifier(data, epochs=4).accuracy(test.images, test.labels) > 0.95
    assert train_reference_classifier(shuffled, epochs=4).accuracy(test.images, test.labels) < 0.7


def test_says_how_sure_it_is(classifier: ReferenceClassifier) -> None:
    images = tiny_images(50, seed=2).images
    probabilities, features = classifier.probabilities(images), classifier.features(images)
    assert probabilities.shape == (50, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    assert features.shape[0] == 50
    scores = torch.from_numpy(features) @ classifier.network.head.weight.T + classifier.network.head.bias
    np.testing.assert_allclose(scores.detach().double().softmax(1), probabilities, rtol=1e-5)
    assert classifier.probabilities(images[7:8])[0] == pytest.approx(
        probabilities[7], rel=1e-4
    )  # by itself, as among others


def test_is_the_same_for_the_same_seed_and_leaves_torch_alone() -> None:
    data = tiny_images(48)
    state = torch.random.get_rng_state()
    one, again, other = (
        train_reference_classifier(data, epochs=1, seed=seed).probabilities(data.images) for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_survives_a_file_and_is_trained_once(
    classifier: ReferenceClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny_images(20, seed=3)
    path = tmp_path / "reference-classifier-0.safetensors"
    classifier.save(path)
    assert np.array_equal(
        ReferenceClassifier.load(path).probabilities(data.images), classifier.probabilities(data.images)
    )
    assert ReferenceClassifier.load(path).facts == classifier.facts

    trained = []
    monkeypatch.setattr(module, "train_reference_classifier", lambda *_, **__: trained.append(1) or classifier)
    cached_reference_classifier(data, tmp_path)
    assert not trained
    monkeypatch.setattr(module, "RECIPE", "another one")
    with pytest.raises(RunError, match="another one"):
        ReferenceClassifier.load(path)
    cached_reference_classifier(data, tmp_path)
    cached_reference_classifier(data, None)
    assert len(trained) == 2
    path.write_bytes(b"no classifier")
    with pytest.raises(RunError, match="saved by this package"):
        ReferenceClassifier.load(path)


def test_tells_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    train_reference_classifier(tiny_images(40), epochs=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(step, 16) for step in range(1, 17)]


def test_shifts_move_whole_images_and_nothing_else() -> None:
    images = torch.from_numpy(tiny_images(30, side=28).images)
    moved = module.shifted(images, torch.Generator().manual_seed(0), 2)
    assert moved.shape == images.shape
    offsets = set()
    for before, after in zip(images, moved, strict=True):
        matches = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if torch.equal(after[:, 2:-2, 2:-2], before[:, 2 + dy : 26 + dy, 2 + dx : 26 + dx])
        ]
        assert len(matches) == 1
        offsets.update(matches)
    assert len(offsets) > 10


def test_refuses_what_it_was_not_trained_for(classifier: ReferenceClassifier) -> None:
    data = tiny_images(20)
    for bad in (data.images.astype(np.float32), data.images[:, :, :4], data.images[:0]):
        with pytest.raises(DataError, match="uint8 image of shape"):
            classifier.probabilities(bad)
    with pytest.raises(DataError, match="labelled"):
        train_reference_classifier(dataclasses.replace(data, labels=None, classes=1))
