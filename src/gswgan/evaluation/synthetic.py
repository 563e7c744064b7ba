"""The synthetic set that is evaluated: read, checked against the real data, cut to size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from gswgan.data import ImageData, make_image_data
from gswgan.data.readers import read_npz
from gswgan.errors import DataError

PER_CLASS = 10
"""Fewer synthetic images than this per class, on average, say nothing."""


def read_synthetic(path: Path, real: ImageData) -> ImageData:
    """The `images` and `labels` of an .npz, as `gswgan sample` writes it. Pickles are never loaded."""
    if path.suffix.lower() != ".npz":
        raise DataError("synthetic", str(path), "a run folder, a release folder or an .npz file")
    arrays = read_npz(path, "images", "labels")
    for name in ("images", "labels"):
        if name not in arrays and (name == "images" or real.labels is not None):
            raise DataError(
                str(path), f"no array `{name}`", "arrays `images` and `labels`",
                "Write np.savez(path, images=..., labels=...), or use `gswgan sample`.",
            )  # fmt: skip
    return make_synthetic(arrays["images"], arrays.get("labels"), real, name=path.name)


def make_synthetic(images: np.ndarray, labels: np.ndarray | None, real: ImageData, *, name: str) -> ImageData:
    """Channel-last arrays as a synthetic set to hold against the real one, or a DataError that says why not."""
    if real.labels is None:
        labels = None
    data = make_image_data(images, labels, classes=None if labels is None else real.classes, name=name)
    if data.images.shape[1:] != real.images.shape[1:]:
        raise DataError(
            f"images of {name}", f"{data.image_size}x{data.image_size}x{data.channels}",
            f"{real.image_size}x{real.image_size}x{real.channels}, as the real data {real.name} has",
            "Is it the right --data?",
        )  # fmt: skip
    if data.n < PER_CLASS * real.classes:
        raise DataError(
            f"images of {name}", f"{data.n} images", f"at least {PER_CLASS} per class, so {PER_CLASS * real.classes}"
        )
    if data.labels is not None and real.classes > 1 and len(np.unique(data.labels)) < 2:
        raise DataError(f"labels of {name}", f"only class {data.labels[0]}", "at least two classes to tell apart")
    return data


def stratified(data: ImageData, size: int, seed: int) -> ImageData:
    """`size` records drawn without replacement, each class in proportion to what it has (largest remainders)."""
    if not PER_CLASS * data.classes <= size <= data.n:
        raise DataError(
            "size", size, f"{PER_CLASS * data.classes} ({PER_CLASS} per class) to {data.n}, the images of {data.name}"
        )
    labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
    share = np.bincount(labels, minlength=data.classes) * (size / data.n)
    take = np.floor(share).astype(np.int64)
    take[np.argsort(take - share, kind="stable")[: size - int(take.sum())]] += 1
    rng = np.random.default_rng([seed, size])
    order = rng.permutation(data.n)
    chosen = np.concatenate([order[labels[order] == label][:number] for label, number in enumerate(take)])
    chosen = rng.permutation(chosen)
    return dataclasses.replace(
        data, images=data.images[chosen], labels=None if data.labels is None else data.labels[chosen], persons=None
    )
