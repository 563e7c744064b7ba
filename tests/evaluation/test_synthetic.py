"""The synthetic set: what is read, what is refused with a reason, and how it is cut to size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from conftest import tiny_images
from gswgan.data import load_data
from gswgan.errors import DataError
from gswgan.evaluation.synthetic import make_synthetic, read_synthetic, stratified


def test_stratified_keeps_the_proportions() -> None:
    data = tiny_images(90)
    skewed = dataclasses.replace(data, labels=np.repeat([0, 1, 2], [60, 20, 10]))
    part = stratified(skewed, 45, seed=1)
    assert np.bincount(part.labels).tolist() == [30, 10, 5]
    assert stratified(skewed, 31, seed=1).n == 31
    known = {image.tobytes(): label for image, label in zip(skewed.images, skewed.labels)}
    assert all(known[image.tobytes()] == label for image, label in zip(part.images, part.labels))
    assert len({image.tobytes() for image in part.images}) == 45
    assert np.array_equal(part.images, stratified(skewed, 45, seed=1).images)
    assert not np.array_equal(part.images, stratified(skewed, 45, seed=2).images)
    for size in (29, 91):
        with pytest.raises(DataError, match="10 per class"):
            stratified(skewed, size, seed=1)


def bad_files() -> dict[str, tuple[dict[str, np.ndarray], str]]:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (100, 8, 8), dtype=np.uint8), np.arange(100) % 10
    floats = images / 255
    broken = floats.copy()
    broken[3, 2, 2] = np.nan
    return {
        "wrong side": ({"images": np.zeros((100, 16, 16), np.uint8), "labels": labels}, "16x16x1.*8x8x1"),
        "colour": ({"images": np.zeros((100, 8, 8, 3), np.uint8), "labels": labels}, "8x8x3.*8x8x1"),
        "flat": ({"images": images.reshape(100, 64), "labels": labels}, "shape"),
        "nan": ({"images": broken, "labels": labels}, "record 3 .*not finite"),
        "floats up to 255": ({"images": images.astype(np.float32), "labels": labels}, r"outside \[0, 1\]"),
        "no labels": ({"images": images}, "no array `labels`"),
        "no images": ({"labels": labels}, "no array `images`"),
        "labels of another length": ({"images": images, "labels": labels[:50]}, "one label per image"),
        "unknown class": ({"images": images, "labels": labels + 1}, "a class from 0 to 9"),
        "too few": ({"images": images[:99], "labels": labels[:99]}, "at least 10 per class, so 100"),
        "one class": ({"images": images, "labels": np.zeros(100, np.int64)}, "at least two classes"),
        "pickle": ({"images": images, "labels": labels.astype(object)}, "never pickled"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_bad_synthetic_files_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    arrays, reason = bad_files()[name]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=reason):
        read_synthetic(tmp_path / "bad.npz", load_data("digits"))


def test_good_files_are_read(tmp_path: Path) -> None:
    real = load_data("digits")
    arrays = {"images": real.images[:200, 0] / 255, "labels": real.labels[:200]}
    np.savez(tmp_path / "good.npz", **arrays)
    assert np.array_equal(read_synthetic(tmp_path / "good.npz", real).images, real.images[:200])
    with pytest.raises(DataError, match=r"an \.npz file"):
        read_synthetic(tmp_path / "good.csv", real)
    unlabelled = dataclasses.replace(real, labels=None, classes=1, class_names=("all",))
    assert make_synthetic(arrays["images"], None, unlabelled, name="x").labels is None
